"""Operators alter the configuration of a topic while it is written. Each seed draws the settings.

- After healing, every broker describes the last confirmed value, and its replica applies it. An attempt without a
  response may take effect later, so its value is accepted as well.
- Acknowledged records are in the log unless a value that may have been in force allows their removal: below the log
  start only if retention was ever limited, and elsewhere only if the topic was ever compacted and a later message has
  the same key.
- `min.insync.replicas` and `flush.messages` do not allow a loss: a replica that may lack acknowledged records cannot
  lead, whatever the present configuration is. Only an unclean election may lose records sent before it. Operators order
  these where `flush.messages` is altered; otherwise a power failure of all brokers leaves the partition without a
  leader.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.clients import IMPATIENT, Client
from tests.simulation.features.feature import (
    LONG_MAX,
    POLL_SECONDS,
    WITHOUT_GAPS,
    Draft,
    Fault,
    Feature,
    StoredPartition,
    TopicWriter,
    record_final_logs,
    stored,
)
from tests.simulation.features.unclean import Elector, UncleanElections

from headrace.broker.partition import Partition
from headrace.client.admin.topic_admin import NewTopic, ResourceType, TopicAdmin
from headrace.client.errors import only_result, raise_for_code
from headrace.model.configs import attribute_name, value_text
from headrace.model.errors import HeadraceError
from headrace.testkit.anomalies import Anomaly
from headrace.testkit.history import History
from headrace.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from tests.simulation.cluster_scenario import ClusterScenario

TOPIC = "tuned"
KEYS = 6
RETENTION, FLUSH = ("retention.ms", "retention.bytes"), "flush.messages"
VALUES = {
    "cleanup.policy": ("delete", "compact"),
    "flush.messages": ("1", "20"),
    "max.message.bytes": ("400", "1000000"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "min.insync.replicas": ("1", "2"),
    "retention.bytes": ("-1", "3000"),
    "retention.ms": ("-1", "1500", "60000"),
    "segment.bytes": ("300", "1000", "1000000"),
}
FLUSH_CHANCE = 0.4
FLUSH_WEIGHT = 6
"""The weight of the power failure in the list of faults, where `flush.messages` is altered."""
CHANGE_SECONDS = 0.5
LOWERED_SECONDS, LOWERED_LOOK_SECONDS = 3.0, 0.01


class ConfigOperator(Client):
    """Alters one of the given settings at a time."""

    settings = IMPATIENT
    names: list[str]

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.confirmed: dict[str, str] = {}
        self.tried = defaultdict[str, set[str]](set)
        self.unanswered = defaultdict[str, set[str]](set)

    async def work(self) -> None:
        while not self.is_done:
            await self.think(CHANGE_SECONDS)
            name = self.random.choice(self.names)
            others = [value for value in VALUES[name] if value != self.confirmed.get(name)]
            await self._change(name, self.random.choice(others))

    async def _change(self, name: str, value: str) -> None:
        self.tried[name].add(value)
        try:
            await TopicAdmin(self.cluster).alter_configs(TOPIC, set_to={name: value})
        except HeadraceError:
            self.unanswered[name].add(value)
        else:
            self.confirmed[name] = value


class ConfigChanges(Feature):
    settings = {"log.retention.check.interval.ms": "500", "log.cleaner.backoff.ms": "500"}

    def __init__(self, scenario: ClusterScenario) -> None:
        super().__init__(scenario)
        draw = self.random
        self.partitions, self.replicas = draw.choice((1, 2)), draw.choice((2, 3))
        self.names = draw.sample([name for name in VALUES if name != FLUSH], draw.choice((1, 2, 3)))
        if draw.random() < FLUSH_CHANCE:
            self.names.append(FLUSH)
        self.configs = {
            "min.cleanable.dirty.ratio": "0.01",
            "message.timestamp.after.max.ms": LONG_MAX,
            "min.insync.replicas": draw.choice(("1", "2")),
            "retention.ms": "-1",
            "segment.bytes": "1000",
        }
        self.history = History(has_gaps=True)

    def attach(self) -> None:
        client = self.scenario.create_client
        writer = client(TopicWriter, "tuned-writer", self.history)
        writer.topic, writer.draft, writer.pause_seconds = TOPIC, self._draft, 0.2
        self.writer, self.writers = writer, [writer]
        self.operators = [client(ConfigOperator, f"config-operator{number}", self.history) for number in range(2)]
        self.operators = self.operators[: len(self.names)]
        for number, operator in enumerate(self.operators):
            operator.names = self.names[number :: len(self.operators)]
        self.others = [*self.operators]
        if FLUSH in self.names:
            elector = client(Elector, "tuned-elector", self.history)
            elector.sim, elector.topic = self.scenario.cluster, TOPIC
            self.others.append(elector)
        self.elections = UncleanElections(self.scenario.cluster, TOPIC, self.history)

    def _draft(self, writer: TopicWriter, number: int) -> Draft:
        value = f"{writer.name}-{number}".encode() + b"." * self.random.choice((0, 0, 150, 700))
        key = b"key%d" % self.random.randrange(KEYS)
        partition = self.random.randrange(self.partitions)
        self.elections.note_draft(value, partition)
        return Draft(value, partition, key, (), writer.cluster.clock.now_ms())

    async def prepare(self, admin: TopicAdmin) -> None:
        await self.create_known_topic(admin, NewTopic(TOPIC, self.partitions, self.replicas, self.configs))

    def faults(self) -> list[Fault]:
        return [self._cut_power_of_one] * FLUSH_WEIGHT if FLUSH in self.names else []

    async def _cut_power_of_one(self) -> None:
        """Cut the power of one replica, usually the leader: the other one has the records acknowledged from memory.
        This often happens just after `flush.messages` was lowered."""
        if self.random.random() < 0.7:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOWERED_SECONDS):
                    await self._until_lowered()
        cluster = self.scenario.cluster
        record = next(record for name, _, record in cluster.places() if name == TOPIC)
        node_id = record.leader if self.random.random() < 0.6 else self.random.choice(record.replicas)
        if node_id in cluster.brokers:
            broker = cluster.brokers[node_id]
            broker.cut_power()
            await asyncio.sleep(self.random.choice((0.0, 0.3, 2.5)))
            if broker.is_down:
                await broker.start()
            await asyncio.sleep(self.random.choice((0.5, 2.0)))

    async def _until_lowered(self) -> None:
        (operator,) = [one for one in self.operators if FLUSH in one.names]
        while operator.confirmed.get(FLUSH) != "20":
            await asyncio.sleep(LOWERED_LOOK_SECONDS)
        while operator.confirmed[FLUSH] == "20":
            await asyncio.sleep(LOWERED_LOOK_SECONDS)

    # Checks

    async def recover(self, healed: Mapping[int, int]) -> None:
        await super().recover(healed)
        while found := [*await self._not_described(), *self._not_in_force()]:
            self.scenario.missing = "; ".join(found)
            await asyncio.sleep(POLL_SECONDS)

    def _accepted(self) -> Iterator[tuple[str, set[str]]]:
        """Return the values that each altered setting may have after the run."""
        for operator in self.operators:
            for name, value in operator.confirmed.items():
                yield name, {value} | operator.unanswered[name]

    async def _not_described(self) -> list[str]:
        """Describe the values that differ from the confirmed ones, or between brokers."""
        found, described = list[str](), dict[int, dict[str, str | None]]()
        for node_id in self.scenario.cluster.brokers:
            try:
                described[node_id] = await self._described(node_id)
            except HeadraceError as error:
                return [f"broker {node_id} does not describe {TOPIC}: {error}"]
        for name, accepted in self._accepted():
            values = {node_id: one[name] for node_id, one in described.items()}
            if len(set(values.values())) > 1 or not accepted.issuperset(values.values()):
                found.append(f"{name} is {values} instead of {accepted}")
        return found

    async def _described(self, node_id: int) -> dict[str, str | None]:
        resource = DescribeConfigsResource(ResourceType.TOPIC, TOPIC, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        response: DescribeConfigsResponse = await self.scenario.watcher.cluster.call(request, node_id=node_id)
        result = only_result(response.results)
        raise_for_code(result.error_code, result.error_message)
        return {one.name: one.value for one in result.configs}

    def _not_in_force(self) -> list[str]:
        """Describe the replicas that apply other values than the confirmed ones."""
        found, cluster = [], self.scenario.cluster
        for _, index, record in [place for place in cluster.places() if place[0] == TOPIC]:
            for node_id in record.replicas:
                partition = cluster.replica(node_id, TOPIC, index)
                if partition is None:
                    found.append(f"broker {node_id} has no replica of {TOPIC}-{index}")
                    continue
                for name, accepted in self._accepted():
                    works_by = _works_by(partition, name)
                    if works_by.isdisjoint(accepted) or len(works_by) > 1:
                        found.append(f"broker {node_id} works by {works_by} as {name} of {TOPIC}-{index}")
        return found

    def audit(self) -> None:
        self.found = stored(self.scenario.cluster, TOPIC)
        record_final_logs(self.history, self.found)

    def anomalies(self) -> Iterator[Anomaly]:
        if self.elections.last_tried < 0:
            for rule in WITHOUT_GAPS:
                yield from rule(self.history)
        for send in self.history.sends:
            if send.is_ok and send.offset >= 0 and not self.elections.may_lose(send):
                partition = self.found[send.partition]
                if send.offset < partition.start_offset:
                    is_lost = not self._may_retain_less()
                else:
                    is_there = any(one.offset == send.offset for one in partition.records)
                    is_lost = not is_there and not self._is_replaced(send.value, send.offset, partition)
                if is_lost:
                    detail = f"{send.value[:20]!r} at {send.offset} was acknowledged; altered: {self.names}"
                    yield Anomaly("lost", send.partition, detail)

    def _may_retain_less(self) -> bool:
        return any(operator.tried[name] - {"-1"} for operator in self.operators for name in RETENTION)

    def _is_replaced(self, value: bytes, offset: int, partition: StoredPartition) -> bool:
        """Return whether compaction may have removed the message because of a later one with its key."""
        if not any("compact" in operator.tried["cleanup.policy"] for operator in self.operators):
            return False
        key = self.writer.sent[value].draft.key
        return any(one.key == key and one.offset > offset for one in partition.records)


def _works_by(partition: Partition, name: str) -> set[str]:
    """Return the values that the partition applies, and for log settings those of its log."""
    held = {value_text(getattr(partition.config, attribute_name(name)))}
    if name in ("flush.messages", "segment.bytes"):
        held.add(value_text(getattr(partition.log.config, attribute_name(name))))
    return held
