"""Benchmark a million delayed messages: memory, restart time, and the accuracy of releases.

    python -m bench.delays [--messages N] [--timed N] [--kafka HOST:PORT]

Starts a broker, delays N messages by up to thirty days, measures its memory, kills it, restarts it, and waits until it
has loaded the delayed messages. Then it lets a few messages become due and measures the time from their due time to
their timestamp in the topic, and to their arrival at a consumer. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster, connect
from headrace.client.fetch.consumer import Consumer
from headrace.client.produce.producer import Producer, ProducerSettings
from headrace.client.queues.schedule import Schedule
from headrace.model.errors import HeadraceError
from headrace.model.message_headers import DELIVER_AT
from headrace.model.names import delayed_topic

_TOPIC = "bench"
_DAYS_MS = 30 * 86_400_000
_VALUE = b"x" * 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.delays")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--timed", type=int, default=2000, help="messages that come due during the run, over 20 s")
    parser.add_argument("--kafka", default="127.0.0.1:19492", metavar="HOST:PORT")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-delays-") as folder:
        print(json.dumps(asyncio.run(_measure(Path(folder), options.kafka, options.messages, options.timed))))


async def _measure(folder: Path, address: str, messages: int, timed: int) -> dict[str, float]:
    figures: dict[str, float] = {"messages": messages}
    server = _start(folder, address)
    try:
        async with connect(address) as cluster:
            await _until_up(cluster)
            await TopicAdmin(cluster).create(NewTopic(_TOPIC, 1))
            await _delay(cluster, [int(time.time() * 1000) + _DAYS_MS])
            before_mb = _memory_mb(server)
            chance = random.Random(1)
            now_ms = int(time.time() * 1000)
            dues = [now_ms + 3_600_000 + chance.randrange(_DAYS_MS) for _ in range(messages)]
            started = time.monotonic()
            await _delay(cluster, dues)
            figures["written_per_second"] = round(messages / (time.monotonic() - started))
            await _until_loaded(cluster, messages)
            figures["memory_mb"] = round(_memory_mb(server) - before_mb, 1)
        server.send_signal(signal.SIGKILL)
        server.wait()
        server = _start(folder, address)
        started = time.monotonic()
        async with connect(address) as cluster:
            await _until_up(cluster)
            figures["up_again_seconds"] = round(time.monotonic() - started, 2)
            await _until_loaded(cluster, messages)
            figures["loaded_again_seconds"] = round(time.monotonic() - started, 2)
            figures["loaded_again_cpu_seconds"] = round(_cpu_seconds(server), 2)
            figures["memory_after_restart_mb"] = round(_memory_mb(server), 1)
            figures |= await _time(cluster, timed)
    finally:
        server.terminate()
        server.wait()
    return figures


async def _time(cluster: Cluster, count: int) -> dict[str, float]:
    """Measure how late messages are released, in milliseconds."""
    start_ms = int(time.time() * 1000) + 2000
    chance = random.Random(2)
    dues = [start_ms + chance.randrange(20_000) for _ in range(count)]
    appended, arrived = [], []
    async with Consumer(cluster, [_TOPIC]) as consumer:
        await _delay(cluster, dues)
        async for record in consumer:
            due_ms = int(dict(record.headers)["due"] or b"")
            appended.append(record.timestamp_ms - due_ms)
            arrived.append(time.time() * 1000 - due_ms)
            if len(appended) == count:
                break
    assert min(appended) >= 0, "a message was released too early"
    figures: dict[str, float] = {}
    for name, errors in (("appended", sorted(appended)), ("arrived", sorted(arrived))):
        for percent in (50, 99, 100):
            figures[f"{name}_p{percent}_ms"] = round(errors[min(len(errors) * percent // 100, len(errors) - 1)], 1)
    return figures


async def _delay(cluster: Cluster, dues: list[int]) -> None:
    async with Producer(cluster, ProducerSettings(linger_seconds=0.005)) as producer:
        for due_ms in dues:
            due = b"%d" % due_ms
            await producer.submit(delayed_topic(_TOPIC), _VALUE, headers=[(DELIVER_AT, due), ("due", due)])


async def _until_up(cluster: Cluster) -> None:
    while True:
        try:
            await cluster.refresh([])
            return
        except HeadraceError:
            await asyncio.sleep(0.02)


async def _until_loaded(cluster: Cluster, messages: int) -> None:
    """Wait until the broker has loaded all delayed messages."""
    while True:
        try:
            if await Schedule(cluster, _TOPIC).count() >= messages:
                return
        except HeadraceError as error:
            if not error.retriable:
                raise
        await asyncio.sleep(0.02)


def _start(folder: Path, address: str) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("headrace")), "serve", "--data", str(folder), "--kafka", address]
    host, _, port = address.partition(":")
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([*command, "--http", f"{host}:{int(port) + 1}"], stdout=log, stderr=log)


def _cpu_seconds(server: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(server: subprocess.Popen[bytes]) -> float:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


if __name__ == "__main__":
    main()
