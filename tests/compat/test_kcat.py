"""kcat, the command-line client (Debian's is librdkafka 2.0.2, older than confluent-kafka's)."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.integration.process import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt-get install kcat)"
)


def kcat(address: str, *options: str, sent: str = "") -> str:
    return subprocess.run(
        ["kcat", "-b", address, *options],
        input=sent,
        text=True,
        capture_output=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    ).stdout


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(address: str, name: str, compression: str) -> None:
    lines = [f"key-{number}:value {number}" for number in range(200)]
    idempotent = ("-X", "enable.idempotence=true")
    kcat(
        address,
        "-P",
        "-t",
        name,
        "-p",
        "0",
        "-K",
        ":",
        "-z",
        compression,
        *idempotent,
        sent="\n".join(lines) + "\n",
    )
    assert kcat(address, "-C", "-t", name, "-K", ":", "-e", "-q", "-o", "beginning").splitlines() == lines


def test_a_balanced_consumer_group_reads_all_and_commits(address: str, name: str) -> None:
    kcat(address, "-P", "-t", name, sent="".join(f"{number}\n" for number in range(100)))
    group = ("-X", "auto.offset.reset=earliest", "-q", "-c", "50", "-G", name, name)
    halves = [kcat(address, *group).splitlines() for _ in range(2)]
    assert sorted(map(int, halves[0] + halves[1])) == list(range(100))


def test_the_metadata_listing_names_the_broker_and_the_topic(address: str, name: str) -> None:
    kcat(address, "-P", "-t", name, sent="x\n")
    listing = json.loads(kcat(address, "-L", "-J", "-t", name))
    assert [broker["name"] for broker in listing["brokers"]] == [address]
    [topic] = listing["topics"]
    assert topic["topic"] == name
    assert all(partition["leader"] == listing["brokers"][0]["id"] for partition in topic["partitions"])


def test_offsets_are_queried_by_time(address: str, name: str) -> None:
    kcat(address, "-P", "-t", name, "-p", "0", sent="x\ny\n")
    assert kcat(address, "-Q", "-t", f"{name}:0:1").strip() == f"{name} [0] offset 0"
    assert kcat(address, "-Q", "-t", f"{name}:0:-1").strip() == f"{name} [0] offset 2"


def test_reading_the_last_two_from_the_end(address: str, name: str) -> None:
    kcat(address, "-P", "-t", name, "-p", "0", sent="a\nb\nc\nd\n")
    assert kcat(address, "-C", "-t", name, "-p", "0", "-o", "-2", "-e", "-q").splitlines() == ["c", "d"]
