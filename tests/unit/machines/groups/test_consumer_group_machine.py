"""Any order of requests of both protocols, lost responses, slow revocations, changing topics and restarts preserves the
invariants of a group."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.machines.classic_client import ClassicClient
from tests.unit.machines.groups.consumer_group_driver import (
    SESSION_MS,
    AnyClient,
    Client,
    ConsumerGroupDriver,
    replayed,
    settle,
)

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.consumer_group import ConsumerGroupConfig
from headrace.machines.groups.consumer_group_state import ConsumerGroupPhase

positions = st.integers(0, 7)
subscriptions = st.sampled_from([("a",), ("a", "b"), ("b",), ("c", "a"), ()])
regexes = st.sampled_from([None, None, "a|c", ".*", "b"])
TOPICS = ("a", "b", "c")


class ConsumerGroupMachine(RuleBasedStateMachine):
    @initialize(assignors=st.sampled_from([("uniform", "range"), ("range", "uniform")]))
    def start(self, assignors: tuple[str, ...]) -> None:
        config = ConsumerGroupConfig(session_timeout_ms=SESSION_MS, assignors=assignors)
        self.driver = ConsumerGroupDriver(config, a=3, b=2)
        self.sizes = {"a": 3, "b": 2}
        self.clients: list[AnyClient] = []
        self.crashed: list[AnyClient] = []
        self.made = 0
        self.epoch = 0
        self.member_epochs: dict[str, int] = {}

    def client(self, position: int) -> AnyClient:
        return self.clients[position % len(self.clients)]

    def new_client(self, topics: tuple[str, ...], regex: str | None, instance_id: str | None) -> Client:
        self.made += 1
        client = Client(self.driver, f"m{self.made}", *topics, regex=regex, instance_id=instance_id)
        self.clients.append(client)
        return client

    @precondition(lambda self: len(self.clients) < 5)
    @rule(topics=subscriptions, regex=regexes, has_response=st.booleans())
    def member_joins(self, topics: tuple[str, ...], regex: str | None, has_response: bool) -> None:
        self.new_client(topics, regex, None).beat(has_response=has_response)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(topics=subscriptions)
    def a_static_member_joins(self, topics: tuple[str, ...]) -> None:
        self.new_client(topics, None, f"i{self.made}").beat()

    @precondition(lambda self: len(self.clients) < 5)
    @rule(topics=subscriptions, is_cooperative=st.booleans(), is_static=st.booleans(), has_response=st.booleans())
    def a_classic_member_joins(
        self, topics: tuple[str, ...], is_cooperative: bool, is_static: bool, has_response: bool
    ) -> None:
        self.made += 1
        client = ClassicClient(
            self.driver,
            f"m{self.made}",
            *topics,
            is_cooperative=is_cooperative,
            instance_id=f"c{self.made}" if is_static else None,
        )
        self.clients.append(client)
        client.beat(has_response=has_response)

    @precondition(lambda self: self.clients)
    @rule(position=positions, has_response=st.booleans(), is_full=st.booleans())
    def member_sends_heartbeat(self, position: int, has_response: bool, is_full: bool) -> None:
        self.client(position).beat(has_response=has_response, is_full=is_full)

    @rule()
    def all_members_send_heartbeats(self) -> None:
        for client in self.clients:
            client.beat()

    @precondition(lambda self: self.clients)
    @rule(position=positions)
    def member_revokes_partitions(self, position: int) -> None:
        self.client(position).revoke()

    @precondition(lambda self: self.clients)
    @rule(position=positions, topics=subscriptions, regex=regexes)
    def member_changes_subscription(self, position: int, topics: tuple[str, ...], regex: str | None) -> None:
        client = self.client(position)
        client.topics, client.regex = frozenset(topics), regex or ""
        client.beat(is_full=True)

    @precondition(lambda self: self.clients)
    @rule(position=positions)
    def member_leaves(self, position: int) -> None:
        client = self.client(position)
        self.clients.remove(client)
        if client.is_member:
            client.leave()

    @precondition(lambda self: any(client.more["instance_id"] for client in self.clients))
    @rule(comes_back=st.booleans())
    def static_member_leaves_temporarily(self, comes_back: bool) -> None:
        client = next(client for client in self.clients if client.more["instance_id"])
        self.clients.remove(client)
        if client.is_member:
            client.leave(-2)
        if comes_back:
            self.new_client(tuple(client.topics), None, client.more["instance_id"]).beat()

    @precondition(lambda self: self.clients)
    @rule(position=positions)
    def member_crashes(self, position: int) -> None:
        client = self.client(position)
        self.clients.remove(client)
        if not client.more["instance_id"]:  # nobody may come back for that instance until its session is over
            self.crashed.append(client)

    @precondition(lambda self: self.crashed)
    @rule()
    def crashed_member_sends_late_heartbeat(self) -> None:
        client = self.crashed.pop()
        client.beat()
        self.clients.append(client)

    @rule(elapsed_ms=st.sampled_from([1, 5_000, 19_999, 20_000, 45_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.driver.pass_time(elapsed_ms)

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def topic_is_created_or_grows(self, name: str, more: int) -> None:
        if name in self.sizes:
            self.sizes[name] = min(self.sizes[name] + more, 8)
            self.driver.grow(name, self.sizes[name])
        else:
            self.sizes[name] = more
            self.driver.create_topic(name, more)

    @precondition(lambda self: self.sizes)
    @rule(name=st.sampled_from(TOPICS))
    def a_topic_is_deleted(self, name: str) -> None:
        if self.sizes.pop(name, None) is not None:
            self.driver.delete_topic(name)

    @rule()
    def the_broker_restarts(self) -> None:
        self.driver.restart()

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners: dict[TopicIdPartition, str] = {}
        for client in (*self.clients, *self.crashed):
            if client.is_member:
                for partition in client.owned:
                    assert owners.setdefault(partition, client.id) == client.id

    @invariant()
    def epochs_only_grow(self) -> None:
        state = self.driver.state
        assert state.epoch >= self.epoch
        assert state.target_epoch <= state.epoch
        self.epoch = state.epoch
        for member_id, current_assignment in state.current_assignments.items():
            assert (
                current_assignment.epoch == -2
                or self.member_epochs.get(member_id, 0) <= current_assignment.epoch <= state.target_epoch
            )
            self.member_epochs[member_id] = max(current_assignment.epoch, 0)

    @invariant()
    def replaying_the_log_rebuilds_the_state(self) -> None:
        assert vars(replayed(self.driver.log)) == vars(self.driver.state)
        last = {self._key(event): event for event in self.driver.log}  # in the order of compaction: by the last
        order = sorted(
            last, key=lambda key: max(i for i, event in enumerate(self.driver.log) if self._key(event) == key)
        )
        assert vars(replayed(last[key] for key in order)) == vars(self.driver.state)

    @staticmethod
    def _key(event: object) -> tuple[str, str]:
        return type(event).__name__, getattr(event, "member_id", getattr(event, "regex", ""))

    @invariant()
    def exactly_the_members_have_sessions(self) -> None:
        group = self.driver.group
        assert group.deadlines.sessions.keys() == group.state.metadata_by_member.keys()
        assert group.deadlines.revocations.keys() == {
            m for m, held in group.state.current_assignments.items() if held.revoking
        }

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.pass_time(SESSION_MS)
        settle(self.clients)
        state = self.driver.state
        assert state.metadata_by_member.keys() == {client.id for client in self.clients}
        if not self.clients:
            assert state.phase is ConsumerGroupPhase.EMPTY
            assert not state.owners
            return
        assert state.phase is ConsumerGroupPhase.STABLE
        owned = [partition for client in self.clients for partition in client.owned]
        subscribed = self.driver.partitions(*(state.subscribed_topics() & self.sizes.keys()))
        assert len(owned) == len(set(owned))
        assert set(owned) == subscribed
        for client in self.clients:
            assert client.owned == set(state.target(client.id))


ConsumerGroupMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
