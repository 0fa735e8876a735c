"""A Spark driver that copies one topic to another with the `headrace` source and sink, until it is killed.

    python -m tests.chaos.spark_client BOOTSTRAP SOURCE TARGET FOLDER

The checkpoint is in FOLDER, so that the next driver continues from it. The rows go through a shuffle: when a batch runs
again, other tasks get them. The process ends with an exception when the query fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.spark import session

TASKS = 2
ROWS_PER_BATCH = 2000
TRANSACTION_TIMEOUT = "60s"
"""How long a killed driver may block read_committed readers if no other driver follows."""


def main(bootstrap: str, source: str, target: str, folder: str) -> None:
    conf = {
        "spark.driver.memory": "768m",
        "spark.local.dir": str(Path(folder, "local")),
        "spark.sql.warehouse.dir": str(Path(folder, "warehouse")),
    }
    rows = (
        session("chaos", master=f"local[{TASKS},2]", conf=conf)
        .readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
    )
    query = (
        rows.select("key", "value")
        .repartition(TASKS)
        .writeStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("transactionTimeout", TRANSACTION_TIMEOUT)
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .trigger(processingTime="1 second")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
