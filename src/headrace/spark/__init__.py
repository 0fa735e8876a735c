"""Headrace as a source and a sink of Spark, and a session that needs no Java to be installed."""
