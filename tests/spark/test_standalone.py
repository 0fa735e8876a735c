"""The same pipelines on a Spark cluster of a master and two workers, from the same wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, free_ports, wait_until
from tests.integration.records import create_topic, produce

from headrace.columns.offsets import bounds
from headrace.columns.scan import scan

HEADRACE = str(Path(sys.executable).with_name("headrace"))
RECORDS = 100

TRANSFORM = """
[pipeline]
name = "shout"
job = "transform"
[transform]
sql = "shout.sql"
to = "{target}"
[transform.sources.quiet]
topic = "{source}"
"""


@pytest.fixture
def cluster(tmp_path: Path, without_java: None) -> Iterator[str]:
    """The URL of a master with two workers."""
    (port,) = free_ports(1)
    output = tmp_path / "cluster.out"
    command = [
        HEADRACE,
        "pipeline",
        "cluster",
        "--workers",
        "2",
        "--memory",
        "512m",
        "--data",
        str(tmp_path / "cluster"),
    ]
    with output.open("wb") as out:
        process = subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"], stdout=out, stderr=out)
    try:
        wait_until(lambda: b"ready" in output.read_bytes() or process.poll() is not None, "the workers have joined")
        assert output.read_text().startswith(f"ready spark://127.0.0.1:{port} workers=2 ")
        yield f"spark://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    left = [int(path.read_text()) for path in tmp_path.glob("cluster/*/pid")]
    assert left == []


def run(*arguments: str, folder: Path) -> dict[str, Any]:
    output = subprocess.run(
        [HEADRACE, "pipeline", "run", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert output.returncode == 0, output.stderr
    (line,) = output.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def values_of(address: str, topic: str) -> Sequence[bytes]:
    return [
        value.as_py()
        for (_, partition), bound in sorted(bounds(address, [topic]).items())
        for rows in scan(address, topic, partition, bound.earliest, bound.latest, columns=["value"])
        for value in rows.column("value")
    ]


def test_a_transform_and_an_archive_run_on_a_cluster_as_they_do_in_one_process(
    cluster: str, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-loud"
    for name in (topic, target):
        create_topic(broker.address, name, 2)
    produce(broker.address, topic, [b"value-%d" % number for number in range(RECORDS)])
    (tmp_path / "shout.toml").write_text(TRANSFORM.format(source=topic, target=target))
    (tmp_path / "shout.sql").write_text("SELECT key, upper(CAST(value AS STRING)) AS value FROM quiet")
    where = ["--master", cluster, "--brokers", broker.address, "--set", "spark.conf.spark.executor.memory=512m"]
    assert run("shout.toml", *where, folder=tmp_path)["records"] == RECORDS
    assert sorted(values_of(broker.address, target)) == sorted(b"VALUE-%d" % number for number in range(RECORDS))
    output = run("archive", *where, "--set", f"archive.topics={topic}", "--set", "archive.path=kept", folder=tmp_path)
    assert output["records"] == RECORDS
    assert len(list((tmp_path / "kept" / topic).glob("*.parquet"))) == 2
    executors = list((tmp_path / "cluster").glob("worker-*/app-*/*/stderr"))
    assert executors, "the work was done by the workers, not by this process"
    assert os.environ.get("JAVA_HOME") is None
