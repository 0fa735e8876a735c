"""The second part of the demo: Spark jobs over the same topics, each configured by one file."""

from __future__ import annotations

import json

from demo.messaging import BIG_AMOUNT, ORDERS, orders
from demo.runner import DemoRunner, StepFailed

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


def archive(demo: DemoRunner) -> None:
    demo.title("4. A pipeline: the archive")
    demo.explain(
        """Jobs over topics run on Spark, which pip has installed together with Java. One file configures a job. This
        one writes a topic to Parquet files, one per range of offsets, with a manifest that contains their checksums. A
        record in the manifest is never written again."""
    )
    for name, text in FILES.items():
        demo.write(name, text)
    demo.run("cat archive.toml", lines=20)
    demo.run("headrace pipeline run archive.toml -o table")
    count = "import pyarrow.dataset as d; print(d.dataset('archive/orders', exclude_invalid_files=True).count_rows())"
    output = demo.run(f'python -c "{count}"')
    demo.expect("records in the archive", int(output), ORDERS)


def transform(demo: DemoRunner) -> None:
    demo.title("5. From topic to topic, exactly once")
    demo.explain(
        """A SQL query reads a topic and writes to another. It can be killed and restarted at any time: each row is in
        the target exactly once, because a micro-batch and its number are committed atomically."""
    )
    demo.run("cat big-orders.sql", lines=20)
    demo.run("headrace pipeline run big-orders.toml -o table")
    output = demo.run("headrace consume big-orders -e 2>&1", lines=3)
    written = {json.loads(line)["id"] for line in output.splitlines() if line.startswith("{")}
    expected = {order["id"] for _, order in orders() if order["amount"] >= BIG_AMOUNT}
    demo.expect("big orders", sorted(written), sorted(expected))


def report(demo: DemoRunner) -> None:
    demo.title("6. What happened: the report")
    demo.explain(
        """The report shows throughput, lag, latencies, retries and dead letters, computed from the logs, in one
        self-contained HTML page."""
    )
    demo.run("headrace pipeline run report.toml -o table")
    if not (demo.folder / "report.html").is_file():
        raise StepFailed("there is no report.html")


def replay(demo: DemoRunner) -> None:
    demo.title("7. Deleted from the log, kept in the archive: replay and audit")
    demo.explain(
        """Old records are deleted from the topic, here by a command, usually by retention. They can still be read from
        the archive, and replayed to another topic."""
    )
    demo.run("headrace topic trim orders --yes")
    demo.expect("records left", demo.run("headrace consume orders -e | wc -l").split()[-1], "0")
    output = demo.run("headrace consume orders --from-archive archive -e | wc -l")
    demo.expect("records that can still be read", output.split()[-1], str(ORDERS))
    demo.run("headrace pipeline run replay.toml -o table")
    demo.explain(
        """The audit reads both sides completely and verifies that every record is there exactly once, in order, and
        unaltered. It would list every defect and exit with status 1."""
    )
    demo.run("headrace pipeline run audit.toml -o table", lines=20)
