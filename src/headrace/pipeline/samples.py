"""Sample pipeline files for `headrace pipeline init`. Each passes `lint` unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headrace.model.errors import HeadraceError
from headrace.pipeline.job import JOBS
from headrace.pipeline.settings import near

HEAD: Final = """\
# {does}. `headrace pipeline run {file}` runs it; docs/pipelines.md explains every key.

[pipeline]
name = "{name}"
job = "{job}"
# brokers = "127.0.0.1:9092"      # separated by commas; default: HEADRACE_SERVER
# mode = "once"                   # or "continuous": run until stopped
# trigger = "10s"                 # interval of continuous mode
# work = "headrace-pipelines/{name}"   # checkpoints, status and log

[spark]
# master = "local[*]"             # or spark://HOST:7077, yarn, k8s://...
# conf = {{ "spark.driver.memory" = "4g" }}

"""

TABLES: Final = {
    "archive": """\
[archive]
topics = ["orders"]               # names, or patterns such as "orders-.*"
path = "archive"                  # a folder, or a URI such as s3://bucket/archive
# file_bytes = "128MB"            # log bytes per file
# compression = "zstd"
# from = "earliest"               # for topics that are not in the archive yet; or latest, or a time
# on_data_loss = "fail"           # or "skip": records that retention removed before they were archived
# compact = false                 # merge small files
""",
    "replay": """\
[replay]
topics = ["orders"]
to = "{topic}-replayed"           # a topic; {topic} is replaced by the name of the source topic
archive = "archive"               # without it the logs of the topics are read
# from_time = "2026-01-01T00:00:00Z"
# to_time = "2026-02-01T00:00:00Z"
# filter = "key IS NOT NULL"      # SQL over key, value, partition, offset, timestamp, headers
# create = false                  # create the target topic, with the partition count of the source
# origin_header = false           # add headers with source topic, partition and offset
""",
    "transform": """\
[transform]
sql = "{name}.sql"                # or python = "{name}.py", in the style of Spark Declarative Pipelines
to = "orders-big"                 # the topic for the last SELECT of the file

[transform.sources.orders]        # a view for the file
topic = "orders"
# startingOffsets = "earliest"    # any option of the data source
# valueFormat = "json"
# valueSchema = "id BIGINT, amount DOUBLE"
# watermark = "10m"               # allowed lateness, for windows and joins
""",
    "report": """\
[report]
topics = ["orders"]               # names or patterns
html = "report.html"
# since = "24h"                   # a time, or how long ago
# window = "auto"                 # or for example "5m"
# subscriptions = []              # empty: all
# parquet = "report"              # the figures behind the page
""",
    "audit": """\
[[audit.checks]]                  # the run fails if a check finds something
kind = "log"                      # the topic alone
topic = "orders"

# [[audit.checks]]
# kind = "archive"                # the topic against its archive
# topic = "orders"
# archive = "archive"

# [[audit.checks]]
# kind = "replay"                 # the topic against a copy of it
# topic = "orders"
# target = "orders-replayed"

# [[audit.checks]]
# kind = "settled"                # the topic against what a subscription settled
# topic = "orders"
# subscription = "billing"
""",
}

SQL: Final = """\
-- Each row becomes a record of the topic that the pipeline's file names with `to`.
CREATE TEMPORARY VIEW parsed AS
SELECT key, from_json(CAST(value AS STRING), 'id BIGINT, amount DOUBLE') AS sold, timestamp
FROM orders;

SELECT key, sold.id, sold.amount, timestamp AS sold_at
FROM parsed
WHERE sold.amount > 100
"""


class CannotWriteSample(HeadraceError):
    """The job does not exist, or a file exists already."""


def write_sample(job: str, path: Path) -> list[str]:
    """Write the sample files of a job and return their names; existing files are not overwritten."""
    if job not in JOBS:
        raise CannotWriteSample(f"there is no job {job!r}{near(job, JOBS)}; there are {', '.join(JOBS)}")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or job
    head = HEAD.format(does=JOBS[job][2][:1].upper() + JOBS[job][2][1:], file=path.name, name=name, job=job)
    texts = {path: head + TABLES[job].replace("{name}", name)}
    if job == "transform":
        texts[path.with_name(f"{name}.sql")] = SQL
    for target in texts:
        if target.exists():
            raise CannotWriteSample(f"{target} exists already; choose another file")
    for target, text in texts.items():
        target.write_text(text, "utf-8")
    return [str(target) for target in texts]
