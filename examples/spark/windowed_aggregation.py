"""Orders per customer and minute: a windowed aggregation in Spark, exactly once from topic to topic.

python windowed_aggregation.py [ADDRESS] [--seed] [--once] [--checkpoint FOLDER]
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headrace import Client
from headrace.spark import session

ORDER = "customer STRING, amount DOUBLE, at TIMESTAMP"
ORDERS = [  # the last order advances the watermark, which completes the earlier minutes
    ("ada", 30, "10:00:05"), ("grace", 20, "10:00:40"), ("ada", 10, "10:00:55"),
    ("ada", 5, "10:01:10"), ("alan", 7, "10:01:15"), ("ada", 1, "10:00:59"), ("nobody", 0, "10:30:00"),
]  # fmt: skip


def seed(address: str) -> None:
    with Client(address) as client:
        for who, amount, at in ORDERS:
            client.publish("orders", {"customer": who, "amount": amount, "at": f"2026-11-16T{at}Z"}, key=who)


def read(spark: SparkSession, address: str) -> DataFrame:
    stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", address)
    stream = stream.option("subscribe", "orders").option("startingOffsets", "earliest")
    rows = stream.option("groupId", "order-counts").load()  # its lag: headrace group lag order-counts
    return rows.select(F.from_json(F.col("value").cast("string"), ORDER).alias("order")).select("order.*")


def count(orders: DataFrame) -> DataFrame:
    """Count orders per minute and customer. Orders may be two minutes late; later ones are ignored."""
    minutes = orders.withWatermark("at", "2 minutes").groupBy(F.window("at", "1 minute"), "customer")
    return minutes.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))


def write(counts: DataFrame, address: str, checkpoint: str, once: bool) -> StreamingQuery:
    rows = counts.select(
        F.col("customer").alias("key"),
        F.to_json(F.struct("customer", F.col("window.start").alias("minute"), "orders", "amount")).alias("value"),
    )
    sink = rows.writeStream.format("headrace").option("kafka.bootstrap.servers", address)
    # The checkpoint records what was read and counted. A query that was killed continues from it, and its output is
    # in the topic exactly once.
    sink = sink.option("topic", "orders-per-minute").option("checkpointLocation", checkpoint)
    return (sink.trigger(availableNow=True) if once else sink.trigger(processingTime="5 seconds")).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?", default="127.0.0.1:9092")
    parser.add_argument("--seed", action="store_true", help="publish some orders first")
    parser.add_argument("--once", action="store_true", help="process the existing records, then exit")
    parser.add_argument("--checkpoint", default="orders-per-minute.checkpoint")
    options = parser.parse_args()
    if options.seed:
        seed(options.address)
    spark = session("windowed-aggregation", conf={"spark.sql.session.timeZone": "UTC"})
    write(count(read(spark, options.address)), options.address, options.checkpoint, options.once).awaitTermination()
    done = spark.read.format("headrace").option("kafka.bootstrap.servers", options.address)
    for row in done.option("subscribe", "orders-per-minute").load().collect():
        print(row.value.decode())
    spark.stop()


if __name__ == "__main__":
    main()
