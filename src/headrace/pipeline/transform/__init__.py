"""The job `transform`: continuous queries from topics to topics, in SQL or Python."""
