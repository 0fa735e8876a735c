"""Headrace as a Spark data source and sink, and a session that needs no installed Java.

from headrace.spark import session

spark = session()
spark.read.format("headrace").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders").load()
"""

from headrace.spark.session import environment, session

__all__ = ["environment", "session"]
