"""confluent-kafka's ShareConsumer: three members share a partition, and take over the records of a killed one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.compat.share_member import RECORDS_MAX
from tests.integration.process import PATIENCE_SECONDS, outside_broker, wait_until
from tests.integration.records import consume, consumer_of, create_topic, produce

LOCK_MS = 3000


class Taken(NamedTuple):
    offset: int
    delivery: int
    value: str


class Member:
    """A consumer process that writes its operations to a file."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._output = output
        with output.open("wb") as stdout, output.with_suffix(".log").open("wb") as stderr:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    @property
    def taken(self) -> list[Taken]:
        return [Taken(int(offset), int(delivery), value) for offset, delivery, value in self._lines("taken")]

    @property
    def acked(self) -> list[int]:
        return [int(offset) for (offset,) in self._lines("acked")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _lines(self, kind: str) -> list[list[str]]:
        text = self._output.read_text()
        whole = text[: text.rfind("\n") + 1]  # a killed member may have died in the middle of a line
        return [line.split(" ")[1:] for line in whole.splitlines() if line.startswith(kind)]


@contextmanager
def member(address: str, topic: str, way: str, output: Path) -> Iterator[Member]:
    started = Member([sys.executable, "-m", "tests.compat.share_member", address, topic, way], output)
    try:
        yield started
    finally:
        started.kill()


@contextmanager
def share_consumer(address: str, group: str) -> Iterator[ShareConsumer]:
    settings = {"bootstrap.servers": address, "group.id": group, "share.acknowledgement.mode": "explicit"}
    with closing(ShareConsumer(settings)) as consumer:
        yield consumer


def configure(address: str, group: str, **configs: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_records_of_a_killed_member_go_to_the_others_and_no_settled_one_is_redelivered(
    address: str, name: str, tmp_path: Path, fate: signal.Signals
) -> None:
    create_topic(address, name, 1)
    configure(address, name, share_auto_offset_reset="earliest")
    if fate == signal.SIGSTOP:
        if outside_broker() is not None:
            pytest.skip("Kafka's locks last 15 seconds at least")
        configure(address, name, share_record_lock_duration_ms=str(LOCK_MS))
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        produce(address, name, [b"%d" % number for number in range(sent, sent + count)], 0)
        sent += count

    send(RECORDS_MAX)
    with ExitStack() as stack:
        victim = stack.enter_context(member(address, name, "holds", tmp_path / "victim.txt"))
        wait_until(lambda: bool(victim.taken), "the victim has taken something")
        held = {one.offset for one in victim.taken}
        others = [
            stack.enter_context(member(address, name, "works", tmp_path / f"other{number}.txt")) for number in (1, 2)
        ]

        def acked() -> list[int]:
            return sorted(offset for one in others for offset in one.acked)

        def both_work() -> bool:
            send(100)
            wait_until(lambda: set(acked()) >= set(range(sent)) - held, "what the victim does not hold is settled")
            return all(one.acked for one in others)

        wait_until(both_work, "both of the others work")
        victim.process.send_signal(fate)
        wait_until(lambda: len(acked()) == sent, "everything is settled")
        assert acked() == list(range(sent))
        taken = [one for other in others for one in other.taken]
        assert len(taken) == sent, "nothing settled was delivered again"
        assert all(one.delivery > 1 for one in taken if one.offset in held)
    with share_consumer(address, name) as late:
        late.subscribe([name])
        assert [message.offset() for message in late.poll(2.0)] == []


def test_a_message_that_always_fails_becomes_a_dead_letter(address: str, name: str) -> None:
    if outside_broker() is not None:
        pytest.skip("Kafka 4.3 has no dead letters")
    create_topic(address, name, 1)
    configure(address, name, share_auto_offset_reset="earliest", share_delivery_count_limit="3")
    produce(address, name, [b"good", b"poison", b"better"], 0)
    deliveries: list[int | None] = []
    done: list[bytes | None] = []

    def work(message: Message) -> AcknowledgeType:
        if message.value() == b"poison":
            deliveries.append(message.delivery_count())
            return AcknowledgeType.RELEASE
        done.append(message.value())
        return AcknowledgeType.ACCEPT

    with share_consumer(address, name) as worker:
        worker.subscribe([name])

        def has_failed_often() -> bool:
            for message in worker.poll(0.5):
                assert message.error() is None
                worker.acknowledge(message, work(message))
            worker.commit_sync(PATIENCE_SECONDS)
            return len(deliveries) == 3

        wait_until(has_failed_often, "it was delivered three times")
        with consumer_of(address, f"{name}-readers") as reader:
            reader.subscribe([f"{name}.dlq"])
            (letter,) = consume(reader, 1)
        assert letter.value() == b"poison"
        assert [message.offset() for message in worker.poll(1.0)] == []
    assert deliveries == [1, 2, 3]
    assert sorted(done, key=str) == [b"better", b"good"]
