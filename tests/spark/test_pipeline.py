"""Transforms in SQL and Python: continued from checkpoints, stopped cleanly, with readable errors."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.process import BrokerProcess, wait_until
from tests.integration.records import create_topic, produce

from headrace.columns.offsets import bounds
from headrace.columns.scan import scan
from headrace.pipeline.job import JobResult
from headrace.pipeline.runner import plan_pipeline, run_pipeline
from headrace.pipeline.settings import Mode, read_pipeline
from headrace.pipeline.state import WorkFolder
from headrace.pipeline.transform.dataflow import InvalidDataflow
from headrace.pipeline.transform.outputs import TransformFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD = '[pipeline]\nname = "{name}"\njob = "transform"\nbrokers = "{brokers}"\ntrigger = "100ms"\n'


class Stage:
    """A folder with a pipeline, its topics on the shared broker, and the shared session."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, topic: str) -> None:
        self.spark = spark
        self.brokers = broker.address
        self.folder = folder
        self.source = f"{topic}-in"
        self.target = f"{topic}-out"
        self.name = topic
        create_topic(self.brokers, self.source, 2)
        create_topic(self.brokers, self.target, 2)

    def write(self, settings: str, **files: str) -> None:
        text = HEAD.format(name=self.name, brokers=self.brokers) + settings
        (self.folder / "p.toml").write_text(text.replace("SOURCE", self.source).replace("TARGET", self.target))
        for name, content in files.items():
            path = self.folder / name.replace("_", ".")
            path.write_text(content.replace("SOURCE", self.source).replace("TARGET", self.target))

    def produce(self, *numbers: int) -> None:
        produce(self.brokers, self.source, [json.dumps({"id": n, "amount": n / 2}).encode() for n in numbers])

    def run(self, mode: Mode = "once") -> JobResult:
        return run_pipeline(read_pipeline(self.folder / "p.toml"), mode, sessions=lambda _: nullcontext(self.spark))

    def plan(self) -> list[str]:
        return plan_pipeline(read_pipeline(self.folder / "p.toml"), sessions=lambda _: nullcontext(self.spark))

    @property
    def work(self) -> WorkFolder:
        return WorkFolder(read_pipeline(self.folder / "p.toml").work)

    def written(self) -> list[Any]:
        """Return the committed values, by partition."""
        return [
            json.loads(value.as_py())
            for (topic, partition), bound in sorted(bounds(self.brokers, [self.target]).items())
            for rows in scan(self.brokers, topic, partition, bound.earliest, bound.latest, columns=["value"])
            for value in rows.column("value")
        ]


@pytest.fixture
def stage(spark: SparkSession, broker: BrokerProcess, tmp_path: Path, topic: str) -> Stage:
    return Stage(spark, broker, tmp_path, topic)


SQL_SETTINGS = """
[transform]
sql = "x.sql"
to = "TARGET"
[transform.sources.orders]
topic = "SOURCE"
valueFormat = "json"
valueSchema = "id BIGINT, amount DOUBLE"
"""

SQL = """
-- what is large; a semicolon ; in a comment ends nothing
CREATE TEMPORARY VIEW large AS SELECT key, value.id, value.amount, ';' AS note FROM orders WHERE value.amount >= 1;
SELECT key, id, amount FROM large
"""

PYTHON = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.temporary_view
def even():
    return spark.readStream.table("parsed").where("id % 2 = 0")

@dp.temporary_view
def parsed():
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.headrace.brokers"))
        .option("subscribe", "SOURCE")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "from_json(CAST(value AS STRING), 'id BIGINT, amount DOUBLE') AS value", "value.id")
    )

dp.create_sink("out", "headrace", {"topic": "TARGET"})
dp.create_sink("kept", "parquet", {"path": "kept"})

@dp.append_flow(target="out")
def forward():
    return spark.readStream.table("even").select("key", "value")

@dp.append_flow(target="kept")
def keep():
    return spark.readStream.table("parsed").select("id")
"""


def test_sql_continues_from_its_checkpoint(stage: Stage) -> None:
    stage.write(SQL_SETTINGS, x_sql=SQL)
    stage.produce(1, 2, 3)
    assert any("has no checkpoint yet" in line for line in stage.plan())
    assert stage.run().figures == {"records": 3}
    assert sorted(value["id"] for value in stage.written()) == [2, 3]
    assert stage.run().figures == {"records": 0}
    stage.produce(4)
    assert stage.run().figures == {"records": 1}
    assert sorted((value["id"], value["amount"]) for value in stage.written()) == [(2, 1.0), (3, 1.5), (4, 2.0)]
    plan = stage.plan()
    assert any(f"reads {stage.source}, 2 partitions, 4 records" in line for line in plan)
    assert any("writes value string, key binary" in line for line in plan)
    assert any("continues after batch" in line for line in plan)


def test_python_describes_views_and_sinks_and_all_flows_run_together(stage: Stage) -> None:
    stage.write(
        '[transform]\npython = "x.py"\n',
        x_py=PYTHON.replace('"value.id"', "\"from_json(CAST(value AS STRING), 'id BIGINT').id AS id\""),
    )
    stage.produce(*range(10))
    assert stage.run().figures == {"records": 20}
    assert sorted(value["id"] for value in stage.written()) == [0, 2, 4, 6, 8]
    assert sorted(row.id for row in stage.spark.read.parquet(str(stage.folder / "kept")).collect()) == list(range(10))
    assert stage.run().figures == {"records": 0}
    assert len(stage.written()) == 5


def test_a_continuous_run_stops_between_two_batches(stage: Stage) -> None:
    stage.write(SQL_SETTINGS, x_sql=SQL)
    stage.produce(2, 3)

    def stop() -> None:
        wait_until(lambda: len(stage.written()) == 2, "both are written")
        status = stage.work.status()
        assert status is not None
        stage.work.request_stop_of(status.process)

    stopper = threading.Thread(target=stop)
    stopper.start()
    outcome = stage.run("continuous")
    stopper.join()
    assert outcome.ok
    status = stage.work.status()
    assert status is not None
    assert (status.state, status.figures) == ("stopped", {"records": 2})
    assert status.progress is not None
    assert status.progress.lag == 0


def test_a_failure_names_the_python_cause_and_the_next_run_writes_the_rest(stage: Stage) -> None:
    broken = """
from pyspark.sql.functions import udf
from pyspark import pipelines as dp

@udf("string", useArrow=False)
def shown(value):
    raise ValueError("no good value")

dp.create_sink("out", "headrace", {"topic": "TARGET"})

@dp.append_flow(target="out")
def forward():
    read = spark.readStream.format("headrace").option("subscribe", "SOURCE").option("startingOffsets", "earliest")
    read = read.option("kafka.bootstrap.servers", spark.conf.get("spark.headrace.brokers")).load()
    return read.select("key", shown("value").alias("value"))
"""
    stage.write('[transform]\npython = "x.py"\n', x_py=broken)
    stage.produce(1)
    line = broken.splitlines().index('    raise ValueError("no good value")') + 1
    with pytest.raises(TransformFailed, match=rf"^forward: ValueError: no good value \(.*x\.py, line {line}\)$"):
        stage.run()
    assert stage.written() == []
    stage.write(
        '[transform]\npython = "x.py"\n',
        x_py=broken.replace('raise ValueError("no good value")', "return value.decode()"),
    )
    stage.run()
    assert [value["id"] for value in stage.written()] == [1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dp.create_sink('out', 'headrace', {'topic': 't'})", "the file writes nothing"),
        ("@dp.table\ndef t(): return None", r"t is a table, .*x\.py, line 2"),
        ("@dp.append_flow(target='ot')\ndef f(): return None\ndp.create_sink('out', 'noop')", "did you mean out"),
        ("import nothing_of_the_kind", r"ModuleNotFoundError: .*x\.py, line 2"),
        (
            "@dp.append_flow(target='o')\ndef f():\n    return spark.table('gone')\ndp.create_sink('o', 'noop')",
            "f: .*gone.* cannot be found",
        ),
        (
            "@dp.append_flow(target='o')\ndef f():\n    return spark.range(3)\ndp.create_sink('o', 'noop')",
            "does not read a stream",
        ),
        ("@dp.append_flow(target='o')\ndef f():\n    return 3\ndp.create_sink('o', 'noop')", "f returns int"),
        (
            "@dp.append_flow(target='o')\ndef f():\n    return 1 / 0\ndp.create_sink('o', 'noop')",
            r"f: ZeroDivisionError.*line 4",
        ),
    ],
)
def test_an_invalid_file_is_reported_with_its_location(
    spark: SparkSession, tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "p.toml").write_text(HEAD.format(name="p", brokers="127.0.0.1:1") + '[transform]\npython = "x.py"\n')
    (tmp_path / "x.py").write_text(f"from pyspark import pipelines as dp\n{text}\n")
    with pytest.raises(InvalidDataflow, match=why):
        plan_pipeline(read_pipeline(tmp_path / "p.toml"), sessions=lambda _: nullcontext(spark))
