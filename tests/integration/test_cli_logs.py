"""`headrace log` on the files of a real broker: every file is parsed, and every damage is detected."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.integration.process import BrokerProcess
from tests.integration.records import create_topic, produce
from tests.integration.test_cli import Run, rows, run

__all__ = ["run"]  # the fixture


@pytest.fixture
def written(broker: BrokerProcess) -> list[Path]:
    """Return a data folder with all compressions and several segments with indexes, after a clean stop."""
    create_topic(broker.address, "dumped", 1, {"segment.bytes": "1048576", "index.interval.bytes": "4096"})
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [f"{compression} {number} ".encode() * 200 for number in range(1000)]
        settings: dict[str, Any] = {
            "compression.type": compression,
            "batch.num.messages": 20,
            "enable.idempotence": True,
        }
        produce(broker.address, "dumped", values, **settings)
    assert broker.terminate() == 0
    [folder] = {path.parent for path in broker.segment_files() if b"none 1 " in path.read_bytes()}
    return sorted(folder.glob("*.log"))


def test_a_healthy_folder_verifies_and_every_file_can_be_dumped(
    run: Run, broker: BrokerProcess, written: list[Path]
) -> None:
    assert len(written) > 1, "the topic has rolled"
    output = run("log", "verify", "--data", str(broker.data))
    assert output.stdout == ""
    assert "no damage" in output.stderr
    batches = rows(run("log", "dump", "--data", str(broker.data), "--topic", "dumped"))
    assert sum(row["records"] for row in batches) == 5000
    assert {row["compression"] for row in batches} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert {row["crc"] for row in batches} == {"ok"}
    records = rows(run("log", "dump", str(written[0].parent), "--records", "--from", "4990", "--limit", "5"))
    assert [row["offset"] for row in records] == [4990, 4991, 4992, 4993, 4994]
    assert records[0]["value"].startswith("zstd 990 ")
    entries = rows(run("log", "dump", str(written[0].with_suffix(".index"))))
    by_position = {row["position"]: row["last_offset"] for row in rows(run("log", "dump", str(written[0])))}
    assert entries
    assert all(by_position[entry["position"]] == entry["offset"] for entry in entries)
    for path in written[0].parent.iterdir():
        if path.suffix in {".timeindex", ".checkpoint"}:
            assert rows(run("log", "dump", str(path)))


def test_every_changed_byte_of_the_batches_is_detected(run: Run, broker: BrokerProcess, written: list[Path]) -> None:
    random = Random(7)
    path = written[0]
    batches = rows(run("log", "dump", str(path)))
    whole = path.read_bytes()
    for _ in range(8):
        batch = random.choice(batches)
        # The leader epoch (bytes 12 to 15) is neither under the checksum nor bound to anything else.
        at = random.choice([*range(12), *range(16, batch["size_bytes"])])
        damaged = bytearray(whole)
        damaged[batch["position"] + at] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        found = rows(run("log", "verify", "--data", str(broker.data), "--topic", "dumped", expect=1))
        assert (found[0]["file"], found[0]["position"]) == (str(path), batch["position"]), at
    path.write_bytes(whole)
    run("log", "verify", "--data", str(broker.data))


def test_a_data_folder_in_use_is_read_with_a_warning(run: Run, broker: BrokerProcess) -> None:
    run("produce", "orders", stdin="1\n2\n3\n")
    output = run("log", "verify", "--data", str(broker.data))
    assert "a broker is using" in output.stderr
    assert "no damage" in output.stderr


def test_after_a_kill_nothing_that_was_acknowledged_is_damaged(run: Run, broker: BrokerProcess) -> None:
    run("topic", "create", "orders", "-p", "1")
    run("produce", "orders", stdin="".join(f"{number}\n" for number in range(1000)))
    broker.kill()
    run("log", "verify", "--data", str(broker.data))
    records = rows(run("log", "dump", "--data", str(broker.data), "--topic", "orders", "--records"))
    assert [row["value"] for row in records] == [str(number) for number in range(1000)]
