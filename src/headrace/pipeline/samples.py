"""Files to start from: what `headrace pipeline init` writes. Each passes `lint` as it is."""

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
# brokers = "127.0.0.1:9092"      # several divided by commas; else HEADRACE_SERVER
# mode = "once"                   # or "continuous": go on until it is stopped
# trigger = "10s"                 # how often, if it is continuous
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
# file_bytes = "128MB"            # of the log, for one file
# compression = "zstd"
# from = "earliest"               # of a topic that is not in the archive yet; or latest, or a time
# on_data_loss = "fail"           # or "skip": what retention took before it was archived
# compact = false                 # merge small files
""",
    "replay": """\
[replay]
topics = ["orders"]
to = "{topic}-replayed"           # a topic; {topic} stands for the name of the one that is read
archive = "archive"               # without it the topics' own logs are read
# from_time = "2026-01-01T00:00:00Z"
# to_time = "2026-02-01T00:00:00Z"
# filter = "key IS NOT NULL"      # SQL over key, value, partition, offset, timestamp, headers
# create = false                  # make the topic, with as many partitions
# origin_header = false           # say in a header where each record comes from
""",
    "transform": """\
[transform]
sql = "{name}.sql"                # or python = "{name}.py", of the shape of Spark Declarative Pipelines
to = "orders-big"                 # the topic for the last SELECT of the file

[transform.sources.orders]        # a view for the file
topic = "orders"
# startingOffsets = "earliest"    # every option of the data source can stand here
# valueFormat = "json"
# valueSchema = "id BIGINT, amount DOUBLE"
# watermark = "10m"               # how late records may come, for windows and joins
""",
    "report": """\
[report]
topics = ["orders"]               # names or patterns
html = "report.html"
# since = "24h"                   # for how long ago it was, or a time
# window = "auto"                 # or such as "5m"
# subscriptions = []              # all
# parquet = "report"              # the figures behind the page
""",
    "audit": """\
[[audit.checks]]                  # each has a verdict; the run fails if one found something
kind = "log"                      # the topic by itself
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
    """There is no such job, or something is there already."""


def write_sample(job: str, path: Path) -> list[str]:
    """Write it, never over something; the names of the files."""
    if job not in JOBS:
        raise CannotWriteSample(f"there is no job {job!r}{near(job, JOBS)}; there are {', '.join(JOBS)}")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or job
    head = HEAD.format(does=JOBS[job][2][:1].upper() + JOBS[job][2][1:], file=path.name, name=name, job=job)
    texts = {path: head + TABLES[job].replace("{name}", name)}
    if job == "transform":
        texts[path.with_name(f"{name}.sql")] = SQL
    for target in texts:
        if target.exists():
            raise CannotWriteSample(f"{target} is there already; name another file")
    for target, text in texts.items():
        target.write_text(text, "utf-8")
    return [str(target) for target in texts]
