"""Orders with their payments: a join of two streams in Spark. Orders not paid within ten minutes are reported too.

python stream_join.py [ADDRESS] [--seed] [--once] [--checkpoint FOLDER]
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headrace import Client
from headrace.spark import session

PLACED = [("o-1", 30, "10:00"), ("o-2", 20, "10:01"), ("o-3", 7, "10:02"), ("o-9", 0, "11:00")]
PAID = [("o-1", 30, "10:03"), ("o-3", 7, "10:15"), ("o-9", 0, "11:00")]  # o-3 is too late; o-9 advances the watermark


def seed(address: str) -> None:
    with Client(address) as client:
        for topic, rows in (("placed", PLACED), ("paid", PAID)):
            for key, amount, at in rows:
                client.publish(topic, {"id": key, "amount": amount, "at": f"2026-11-16T{at}:00Z"}, key=key)


def read(spark: SparkSession, address: str, topic: str) -> DataFrame:
    """Read a topic with a watermark: rows may be five minutes late, and Spark keeps unmatched rows for that long."""
    stream = spark.readStream.format("headrace").option("kafka.bootstrap.servers", address)
    rows = stream.option("subscribe", topic).option("startingOffsets", "earliest").load()
    value = F.from_json(F.col("value").cast("string"), "id STRING, amount DOUBLE, at TIMESTAMP")
    return rows.select(value.alias("row")).select("row.*").withWatermark("at", "5 minutes").alias(topic)


def join(placed: DataFrame, paid: DataFrame) -> DataFrame:
    in_time = F.expr("paid.id = placed.id AND paid.at BETWEEN placed.at AND placed.at + INTERVAL 10 MINUTES")
    columns = [F.col("placed.id"), F.col("placed.amount"), F.col("paid.at").alias("paid_at")]
    joined = placed.join(paid, in_time, "left_outer").select(*columns)
    return joined.select(
        F.col("id").alias("key"),
        F.to_json(F.struct("id", "amount", F.col("paid_at").isNotNull().alias("is_paid"))).alias("value"),
    )


def write(rows: DataFrame, address: str, checkpoint: str, once: bool) -> StreamingQuery:
    sink = rows.writeStream.format("headrace").option("kafka.bootstrap.servers", address)
    sink = sink.option("topic", "order-payments").option("checkpointLocation", checkpoint)
    return (sink.trigger(availableNow=True) if once else sink.trigger(processingTime="5 seconds")).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?", default="127.0.0.1:9092")
    parser.add_argument("--seed", action="store_true", help="publish some orders and payments first")
    parser.add_argument("--once", action="store_true", help="process the existing records, then exit")
    parser.add_argument("--checkpoint", default="order-payments.checkpoint")
    options = parser.parse_args()
    if options.seed:
        seed(options.address)
    spark = session("stream-join", conf={"spark.sql.session.timeZone": "UTC"})
    rows = join(read(spark, options.address, "placed"), read(spark, options.address, "paid"))
    write(rows, options.address, options.checkpoint, options.once).awaitTermination()
    done = spark.read.format("headrace").option("kafka.bootstrap.servers", options.address)
    for row in done.option("subscribe", "order-payments").load().collect():
        print(row.value.decode())
    spark.stop()


if __name__ == "__main__":
    main()
