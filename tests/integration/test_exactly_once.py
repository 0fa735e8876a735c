"""Records are copied exactly once while copiers and broker are killed, and paused copiers resume (I14, I15, I17).

HEADRACE_KILLS sets the number of kills, by default 6; HEADRACE_SEED their targets and times, by default 1. The full
run:

    HEADRACE_KILLS=30 pytest tests/integration/test_exactly_once.py

With HEADRACE_TEST_BROKER only the copiers are killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.compat.copier import ABORTED, TARGET_PARTITIONS
from tests.integration.conftest import Figures, StartBroker
from tests.integration.process import BrokerProcess, outside_broker, wait_until
from tests.integration.records import create_topic, produce

KILLS = int(os.environ.get("HEADRACE_KILLS", "6"))
SEED = int(os.environ.get("HEADRACE_SEED", "1"))
SOURCE_PARTITIONS = 4
ROUND_RECORDS = 400
"""Written before each kill, which comes when a random part of them is copied: so it always hits copiers at work."""
PATIENCE_SECONDS = 120.0


class Copier:
    """A copier process; when it exits, fenced or failed, it is restarted, like by a supervisor."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        self._zombies: list[subprocess.Popen[bytes]] = []
        self.starts = 0
        self._start()

    def keep_alive(self) -> None:
        if self._process.poll() is not None:
            self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._start()

    def freeze(self) -> None:
        """Pause the process and start its successor, which must fence it."""
        self._process.send_signal(signal.SIGSTOP)
        self._zombies.append(self._process)
        self._start()

    def thaw(self) -> None:
        for zombie in self._zombies:
            zombie.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for process in (self._process, *self._zombies):
            process.kill()
            process.wait()

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])

    def _start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class Output:
    """Reads the target from its start during the whole test, and records every value in order."""

    def __init__(self, address: str, topic: str, isolation: str) -> None:
        self.values: list[bytes] = []
        self._unfinished = set(range(TARGET_PARTITIONS))
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"reads {isolation}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 50,
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(TARGET_PARTITIONS)])

    def read(self) -> int:
        """Consume all available values; return the total number."""
        for message in self._consumer.consume(1000, timeout=0.02):
            error = message.error()
            if error is None:
                self.values.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                self._unfinished.discard(message.partition() or 0)
        return len(self.values)

    def at_the_end(self) -> bool:
        """Whether every partition was read up to its given end offset."""
        self.read()
        return not self._unfinished

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def copiers_of(client: str, address: str, source: str, target: str, folder: Path) -> Iterator[list[Copier]]:
    with ExitStack() as stack:
        followers = []
        for name, partitions in [("even", ["0", "2"]), ("odd", ["1", "3"])]:
            command = [sys.executable, "-m", "tests.compat.copier", client, address, source, target, f"{target}-{name}"]
            copier = Copier(command + partitions, folder / f"{name}.log")
            followers.append(stack.enter_context(closing(copier)))
        yield followers


def wait_for_output(output: Output, count: int, followers: list[Copier]) -> None:
    def copied() -> bool:
        for copier in followers:
            copier.keep_alive()
        return output.read() >= count

    try:
        wait_until(copied, f"{count} records are copied", PATIENCE_SECONDS)
    except AssertionError as stuck:
        logs = "\n".join(copier.log_tail() for copier in followers)
        raise AssertionError(f"{stuck}; {len(output.values)} are; the copiers say:\n{logs}") from None


def write_round(address: str, source: str, number: int) -> None:
    numbers = range(number * ROUND_RECORDS, (number + 1) * ROUND_RECORDS)
    for partition in range(SOURCE_PARTITIONS):
        values = [b"%d" % one for one in numbers if one % SOURCE_PARTITIONS == partition]
        produce(address, source, values, partition=partition, **{"enable.idempotence": True})


def hurt(chance: random.Random, followers: list[Copier], broker: BrokerProcess | None) -> list[str]:
    """Kill one process, or pause a copier; return what was done."""
    done = ["copier killed" if broker is None else chance.choice(["copier killed", "broker killed"])]
    if chance.random() < 0.3:
        chance.choice(followers).freeze()
        done.append("copier frozen")
    if broker is not None and done[0] == "broker killed":
        broker.restart()
    else:
        chance.choice(followers).kill()
    return done


def committed_offsets(address: str, group: str, topic: str) -> list[int]:
    places = [TopicPartition(topic, partition) for partition in range(SOURCE_PARTITIONS)]
    with closing(Consumer({"bootstrap.servers": address, "group.id": group})) as consumer:
        found = consumer.committed(places, timeout=PATIENCE_SECONDS)
    return [int(place.offset) for place in found]


@pytest.mark.timeout(240 + 60 * KILLS)
@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_every_record_is_copied_exactly_once_despite_kills(
    start_broker: StartBroker, figures: Figures, tmp_path: Path, client: str
) -> None:
    chance = random.Random(SEED)
    broker = start_broker({"group.min.session.timeout.ms": "1000"}) if outside_broker() is None else None
    address = broker.address if broker is not None else str(outside_broker())
    source, target = (f"{client}-{side}-{os.getpid()}" for side in ("source", "target"))
    create_topic(address, source, SOURCE_PARTITIONS)
    create_topic(address, target, TARGET_PARTITIONS)
    done: Counter[str] = Counter()
    with (
        copiers_of(client, address, source, target, tmp_path) as followers,
        closing(Output(address, target, "read_committed")) as output,
    ):
        for number in range(KILLS):
            write_round(address, source, number)
            wait_for_output(output, number * ROUND_RECORDS + chance.randrange(20, ROUND_RECORDS), followers)
            for copier in followers:
                copier.thaw()
            done.update(hurt(chance, followers, broker))
        write_round(address, source, KILLS)
        for copier in followers:
            copier.thaw()
        total = (KILLS + 1) * ROUND_RECORDS
        wait_for_output(output, total, followers)
        assert committed_offsets(address, source, source) == [total // SOURCE_PARTITIONS] * SOURCE_PARTITIONS

    assert Counter(output.values) == Counter(b"%d" % one for one in range(total))
    with closing(Output(address, target, "read_committed")) as again:
        wait_until(again.at_the_end, "the target is read again to its end")
    assert sorted(again.values) == sorted(output.values)
    with closing(Output(address, target, "read_uncommitted")) as everything:
        wait_until(everything.at_the_end, "the target is read with what was aborted")
    aborted = sum(value.startswith(ABORTED) for value in everything.values)
    assert aborted > 0, "the copiers abort on purpose, so there is something that must not be seen"
    hurts = ", ".join(f"{count} times {kind}" for kind, count in sorted(done.items()))
    starts = sum(copier.starts for copier in followers)
    figures.add(f"seed {SEED}: {hurts}; {total} records copied once, {aborted} aborted ones unseen, {starts} starts")
