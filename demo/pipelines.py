"""The second half of the story: jobs on Spark over the same topics, each from one file."""

from __future__ import annotations

import json

from demo.stage import NotAsTold, Stage
from demo.story import BIG_AMOUNT, RECORDS, orders

ARCHIVE = """\
[pipeline]
name = "archive"
job = "archive"

[archive]
topics = ["orders"]
path = "archive"
"""

REPLAY = """\
[pipeline]
name = "replay"
job = "replay"

[replay]
topics = ["orders"]
archive = "archive"
to = "orders-again"
create = true
"""

AUDIT = """\
[pipeline]
name = "audit"
job = "audit"

[[audit.checks]]
kind = "replay"
topic = "orders"
archive = "archive"
target = "orders-again"
"""

TRANSFORM = """\
[pipeline]
name = "big-orders"
job = "transform"

[transform]
sql = "big-orders.sql"
to = "big-orders"

[transform.sources.orders]
topic = "orders"
valueFormat = "json"
valueSchema = "id BIGINT, country STRING, amount INT"
"""

SQL = f"""\
SELECT key, value.id, value.country, value.amount
FROM orders WHERE value.amount >= {BIG_AMOUNT}
"""

REPORT = """\
[pipeline]
name = "report"
job = "report"

[report]
topics = ["orders", "big-orders"]
html = "report.html"
title = "Orders, from the first to the last"
"""

FILES = {
    "archive.toml": ARCHIVE,
    "replay.toml": REPLAY,
    "audit.toml": AUDIT,
    "big-orders.toml": TRANSFORM,
    "big-orders.sql": SQL,
    "report.toml": REPORT,
}


def archive(stage: Stage) -> None:
    stage.title("4. A pipeline: the archive")
    stage.say(
        """Jobs over topics run on Spark, which came with pip, its Java too. Each is one file. This one writes a
        topic to Parquet files, each for a range of offsets, with a manifest that knows their checksums. What is
        in it is never written again."""
    )
    for name, text in FILES.items():
        stage.write(name, text)
    stage.do("cat archive.toml", lines=20)
    stage.do("headrace pipeline run archive.toml -o table")
    count = "import pyarrow.dataset as d; print(d.dataset('archive/orders', exclude_invalid_files=True).count_rows())"
    said = stage.do(f'python -c "{count}"')
    stage.expect("records in the archive", int(said), RECORDS)


def transform(stage: Stage) -> None:
    stage.title("5. From topic to topic, exactly once")
    stage.say(
        """SQL over a topic, into another one. It can be killed at any moment and run again: what was written is
        there once, because all that a micro-batch writes is committed in one step together with its number."""
    )
    stage.do("cat big-orders.sql", lines=20)
    stage.do("headrace pipeline run big-orders.toml -o table")
    said = stage.do("headrace consume big-orders -e 2>&1", lines=3)
    written = {json.loads(line)["id"] for line in said.splitlines() if line.startswith("{")}
    wanted = {order["id"] for _, order in orders() if order["amount"] >= BIG_AMOUNT}
    stage.expect("big orders", sorted(written), sorted(wanted))


def report(stage: Stage) -> None:
    stage.title("6. What happened: the report")
    stage.say(
        """Throughput, lag, latencies, retries and dead letters, read from the logs themselves, as one page without
        anything around it."""
    )
    stage.do("headrace pipeline run report.toml -o table")
    if not (stage.folder / "report.html").is_file():
        raise NotAsTold("there is no report.html")


def replay(stage: Stage) -> None:
    stage.title("7. The log forgets, the archive does not: replay and audit")
    stage.say(
        """Old records are deleted from the topic, by hand here, else by its retention. They can still be read,
        and played into another topic."""
    )
    stage.do("headrace topic trim orders --yes")
    stage.expect("records left", stage.do("headrace consume orders -e | wc -l").split()[-1], "0")
    said = stage.do("headrace consume orders --from-archive archive -e | wc -l")
    stage.expect("records that can still be read", said.split()[-1], str(RECORDS))
    stage.do("headrace pipeline run replay.toml -o table")
    stage.say(
        """Is it all there, once, in order, and bit for bit? The audit reads both sides in full and would name
        every record that is lost, doubled, out of order or altered; then it would end with status 1."""
    )
    stage.do("headrace pipeline run audit.toml -o table", lines=20)
