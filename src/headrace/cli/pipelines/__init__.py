"""Commands for the data pipeline: Spark jobs, and archives without Spark."""
