"""Groups that grow from one member to three and back, with the consumer protocol (KIP-848), with the classic one, and
while they change from one to the other.

Every member commits what it has read before it gives a partition up, so no record may be skipped or read twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, outside_broker, wait_until
from tests.integration.records import create_topic, produce

PARTITIONS = 3
QUICK = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}
CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "uniform": {"group.protocol": "consumer", "group.remote.assignor": "uniform"},
    "range": {"group.protocol": "consumer", "group.remote.assignor": "range"},
    "default": {"group.protocol": "consumer"},
    "classic": {**CLASSIC, "partition.assignment.strategy": "range"},
    "classic-cooperative": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a short heartbeat interval; otherwise a test would take minutes."""
    outside = outside_broker()
    if outside is not None:
        yield outside
        return
    broker = BrokerProcess(tmp_path_factory.mktemp("consumer-protocol"), QUICK).start()
    yield broker.address
    broker.stop()


class Reader:
    """A member that reads, records, and commits before it gives partitions up."""

    def __init__(self, address: str, group: str, subscription: list[str], **config: Any) -> None:
        self.values: list[str] = []
        self._read: dict[tuple[str, int], int] = {}
        settings = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
        # New topics must be found while the test is waiting.
        self.consumer = Consumer({**settings, "enable.auto.commit": False, "metadata.max.age.ms": 1000, **config})
        self.consumer.subscribe(subscription, on_revoke=self._let_go)

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(one.topic, one.partition) for one in self.consumer.assignment()}

    def poll(self) -> None:
        for message in self.consumer.consume(100, timeout=0.05):
            error = message.error()
            if error is not None:
                assert error.retriable() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART, error
                continue
            topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            assert value is not None
            self.values.append(value.decode())
            self._read[topic, partition] = offset + 1

    def commit(self) -> None:
        self._commit(self.consumer, [*self._read])

    def close(self) -> None:
        """Commit before the close: librdkafka 2.16, closed during an assignment, leaves first and then commits."""
        self.commit()
        self.consumer.close()

    def _let_go(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(consumer, [(one.topic, one.partition) for one in partitions])

    def _commit(self, consumer: Consumer, partitions: list[tuple[str, int]]) -> None:
        done = [TopicPartition(*one, self._read.pop(one)) for one in partitions if one in self._read]
        if done:
            consumer.commit(offsets=done, asynchronous=False)


class GroupFixture:
    """Two topics, the records produced to them, and their readers."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self.topics = [f"{name}-a", f"{name}-b"]
        self.produced: list[str] = []
        self.readers: list[Reader] = []
        self.replaced_member: list[Reader] = []
        for topic in self.topics:
            create_topic(address, topic, PARTITIONS)

    def send_round(self) -> None:
        """Send twenty records to every partition."""
        for topic in self.topics:
            for partition in range(PARTITIONS):
                values = [f"{len(self.produced) + number}" for number in range(20)]
                produce(self.address, topic, [value.encode() for value in values], partition=partition)
                self.produced += values

    def read_until(self, done: Callable[[], bool], what: str) -> None:
        def poll_readers() -> bool:
            for reader in self.readers:
                reader.poll()
            return done()

        wait_until(poll_readers, what)

    def seen(self) -> Counter[str]:
        return Counter(value for reader in (*self.readers, *self.replaced_member) for value in reader.values)

    def is_shared(self) -> bool:
        """Return whether every partition has one owner, and the members' shares differ by at most one."""
        owned = [reader.partitions for reader in self.readers]
        everything = {(topic, partition) for topic in self.topics for partition in range(PARTITIONS)}
        sizes = [len(partitions) for partitions in owned]
        return sum(sizes) == len(everything) and set().union(*owned) == everything and max(sizes) - min(sizes) <= 2

    def share(self) -> None:
        """Send records during and after a rebalance."""
        self.send_round()
        self.read_until(self.is_shared, f"{len(self.readers)} members share the partitions")
        self.send_round()
        self.read_until(lambda: self.seen().keys() >= set(self.produced), "everything is read")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("by_regex", [False, True], ids=["names", "regex"])
def test_from_one_member_to_three_and_back_nothing_is_missed_or_repeated(
    address: str, name: str, protocol: str, by_regex: bool
) -> None:
    scene = GroupFixture(address, name)
    subscription = [f"^{name}.*"] if by_regex else scene.topics
    with ExitStack() as stack:
        for _ in range(3):
            reader = Reader(address, name, subscription, **PROTOCOLS[protocol])
            stack.callback(reader.close)
            scene.readers.append(reader)
            scene.share()
        for _ in range(2):
            leaving = scene.readers.pop(0)
            scene.replaced_member.append(leaving)
            leaving.close()
            scene.share()
    assert scene.seen() == Counter(scene.produced)


def test_members_by_regex_follow_topics_that_are_created_later(address: str, name: str) -> None:
    scene = GroupFixture(address, name)
    with ExitStack() as stack:
        for _ in range(2):
            scene.readers.append(Reader(address, name, [f"^{name}.*"], **PROTOCOLS["uniform"]))
            stack.callback(scene.readers[-1].close)
        scene.share()
        scene.topics.append(f"{name}-c")
        create_topic(address, scene.topics[-1], PARTITIONS)
        scene.share()
    assert scene.seen() == Counter(scene.produced)


def test_an_empty_group_continues_with_the_other_protocol_at_its_offsets(address: str, name: str) -> None:
    scene = GroupFixture(address, name)
    for protocol in ("classic", "uniform", "classic"):
        reader = Reader(address, name, scene.topics, **PROTOCOLS[protocol])
        scene.readers.append(reader)
        scene.share()
        scene.readers.remove(reader)
        scene.replaced_member.append(reader)
        reader.close()
    assert scene.seen() == Counter(scene.produced)


class RunningProducer:
    """Sends records to all partitions in turn until it is stopped."""

    def __init__(self, scene: GroupFixture) -> None:
        self._scene = scene
        self._is_stopped = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._scene.address, "enable.idempotence": True})
        number = 0
        while not self._is_stopped.is_set():
            topic = self._scene.topics[number % len(self._scene.topics)]
            value = f"sent-{number}"
            producer.produce(topic, value.encode(), partition=number // len(self._scene.topics) % PARTITIONS)
            producer.flush()
            self._scene.produced.append(value)
            number += 1


def group_type(admin: AdminClient, name: str) -> str | None:
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid}
    return listed[name].type.name if name in listed else None


@pytest.mark.parametrize("classic", ["classic", "classic-cooperative"])
def test_a_group_changes_to_the_other_protocol_member_by_member_and_back(address: str, name: str, classic: str) -> None:
    scene, admin = GroupFixture(address, name), AdminClient({"bootstrap.servers": address})
    committed: dict[tuple[str, int], int] = {}

    def start(protocol: str) -> None:
        scene.readers.append(Reader(address, name, scene.topics, **PROTOCOLS[protocol]))

    def settle(kind: str) -> None:
        """Wait until every partition has one owner, and all records so far are read and committed."""
        scene.read_until(scene.is_shared, f"{len(scene.readers)} members share the partitions")
        assert group_type(admin, name) == kind
        scene.send_round()
        sent = set(scene.produced)
        scene.read_until(lambda: scene.seen().keys() >= sent, "everything is read")
        for reader in scene.readers:
            reader.commit()
        before = dict(committed)
        request = [ConsumerGroupTopicPartitions(name)]
        stored = admin.list_consumer_group_offsets(request)[name].result(PATIENCE_SECONDS).topic_partitions
        committed.update({(one.topic, one.partition): one.offset for one in stored})
        assert len(committed) == len(scene.topics) * PARTITIONS
        assert all(committed[partition] >= offset for partition, offset in before.items())

    def close_all() -> None:
        for reader in scene.readers:
            reader.close()

    def replace_first(protocol: str, kind: str) -> None:
        leaving = scene.readers.pop(0)
        scene.replaced_member.append(leaving)
        leaving.close()
        start(protocol)
        settle(kind)

    with ExitStack() as stack:
        stack.callback(close_all)
        stack.enter_context(RunningProducer(scene))
        start(classic)
        start(classic)
        settle("CLASSIC")
        replace_first("uniform", "CONSUMER")
        replace_first("uniform", "CONSUMER")
        replace_first(classic, "CONSUMER")
        replace_first(classic, "CLASSIC")
    assert scene.seen().keys() <= set(scene.produced)
    reader = Reader(address, name, scene.topics, **PROTOCOLS[classic])
    scene.replaced_member += scene.readers
    scene.readers = [reader]
    scene.read_until(lambda: scene.seen().keys() == set(scene.produced), "everything is read")
    reader.close()
    assert scene.seen() == Counter(scene.produced)


def test_a_static_member_that_rejoins_reads_on_without_a_rebalance_of_others(address: str, name: str) -> None:
    scene = GroupFixture(address, name)

    def static(number: int) -> Reader:
        return Reader(
            address, name, scene.topics, **PROTOCOLS["uniform"], **{"group.instance.id": f"instance-{number}"}
        )

    scene.readers += [static(1), static(2)]
    scene.share()
    first, second = scene.readers
    had, others = first.partitions, second.partitions
    first.close()
    scene.replaced_member.append(first)
    scene.readers[0] = static(1)
    scene.share()
    assert (scene.readers[0].partitions, second.partitions) == (had, others)
    for reader in scene.readers:
        reader.close()
    assert scene.seen() == Counter(scene.produced)


def test_a_group_may_have_its_own_session_timeout(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    entry = ConfigEntry("consumer.session.timeout.ms", "50000", incremental_operation=AlterConfigOpType.SET)
    altered = admin.incremental_alter_configs([ConfigResource(ResourceType.GROUP, name, incremental_configs=[entry])])
    for future in altered.values():
        future.result(PATIENCE_SECONDS)

    def session() -> str | None:
        (described,) = admin.describe_configs([ConfigResource(ResourceType.GROUP, name)]).values()
        return described.result(PATIENCE_SECONDS)["consumer.session.timeout.ms"].value  # type: ignore[no-any-return]

    wait_until(lambda: session() == "50000", "the new session is seen")


def test_an_administrator_sees_and_deletes_the_group(address: str, name: str) -> None:
    scene = GroupFixture(address, name)
    reader = Reader(address, name, scene.topics, **PROTOCOLS["uniform"])
    scene.readers.append(reader)
    scene.share()
    admin = AdminClient({"bootstrap.servers": address})
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid}
    assert listed[name].state.name == "STABLE"
    assert listed[name].type.name == "CONSUMER"
    described = admin.describe_consumer_groups([name])[name].result(PATIENCE_SECONDS)
    (member,) = described.members
    assert {(one.topic, one.partition) for one in member.assignment.topic_partitions} == reader.partitions
    reader.close()
    admin.delete_consumer_groups([name])[name].result(PATIENCE_SECONDS)
    listed = {group.group_id: group for group in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid}
    assert name not in listed
