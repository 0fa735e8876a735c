"""Kafka's segment tool reads our files, if its jars are present."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.integration.process import BrokerProcess
from tests.integration.records import create_topic, produce

JARS = Path(os.environ.get("HEADRACE_KAFKA_JARS", Path(tempfile.gettempdir()) / "peers" / "kafka-4.3.0"))


@pytest.mark.skipif(shutil.which("java") is None, reason="java is not installed")
@pytest.mark.skipif(not JARS.is_dir(), reason=f"Kafka's jars are not in {JARS} (HEADRACE_KAFKA_JARS)")
@pytest.mark.timeout(180)
def test_kafkas_dump_log_reads_segments_and_indexes(broker: BrokerProcess) -> None:
    create_topic(broker.address, "dumped", 1, {"segment.bytes": "1048576", "index.interval.bytes": "4096"})
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [f"{compression} {number} ".encode() * 200 for number in range(1000)]
        settings: dict[str, Any] = {
            "compression.type": compression,
            "batch.num.messages": 20,
            "enable.idempotence": True,
        }
        produce(broker.address, "dumped", values, **settings)
    produce(broker.address, "dumped", [None, b"", b"the last one"])
    assert broker.terminate() == 0

    [last] = [path for path in broker.segment_files() if b"the last one" in path.read_bytes()]
    segments = [path for path in broker.segment_files() if path.parent == last.parent]
    assert len(segments) > 1, "the topic has rolled"
    files = [str(path.with_suffix(suffix)) for path in segments for suffix in (".log", ".index", ".timeindex")]
    assert all(Path(file).exists() for file in files)
    command = ["java", "-cp", f"{JARS}/*", "org.apache.kafka.tools.DumpLogSegments"]
    dump = subprocess.run(
        [*command, "--deep-iteration", "--print-data-log", "--files", ",".join(files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert dump.returncode == 0, dump.stderr
    assert dump.stdout.count("payload: ") >= 5000
    assert "isvalid: false" not in dump.stdout
    for complaint in (
        "Mismatches in",
        "Non-consecutive offsets",
        "Index timestamp",
        "Found timestamp",
        "invalid",
    ):
        assert complaint not in dump.stdout
    for line in dump.stdout.splitlines():
        if line.startswith("offset: 5002 ") or "| offset: 5002 " in line:
            assert line.endswith("payload: the last one")
            return
    pytest.fail("the last record is not in the dump")
