"""No committed record is lost by crashes, restarts, lost disks, outdated leaders, unknown commits and reassignments.

The partition recovers when all brokers are up again.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from tests.unit.machines.replication.replication_model import LAG_SECONDS_MAX, Broker, World, broker_record

from headrace.machines.controller.leadership import elect_preferred, remove_from_isr, update_leadership
from headrace.machines.controller.reassignment import begin_reassignment, cancel_reassignment, complete_reassignment
from headrace.model.errors import HeadraceError
from headrace.model.registry_records import BrokerRecord, PartitionRecord

BROKERS = 4
nodes = st.integers(1, BROKERS)
targets = st.lists(nodes, min_size=1, max_size=3, unique=True).map(tuple)
beliefs = st.one_of(st.none(), st.sets(nodes))
"""The brokers that are believed to be live; None for those that are."""


class ReplicationMachine(RuleBasedStateMachine):
    @initialize(min_insync=st.integers(1, 3))
    def begin_reassignment(self, min_insync: int) -> None:
        self.min_insync = min_insync
        self.world = World(BROKERS, (1, 2, 3))
        self.world.change(self.settled)
        for broker in self.up():
            self.world.mirror_registry(broker)

    def up(self) -> list[Broker]:
        return [broker for broker in self.world.brokers.values() if broker.is_up]

    def settled(self, record: PartitionRecord) -> PartitionRecord | None:
        return update_leadership(record, self.world.live, self.min_insync)

    def believed(self, belief: set[int] | None) -> dict[int, BrokerRecord]:
        """As far as they are registered, with the epoch that they registered with, which may be over."""
        if belief is None:
            return self.world.live
        return {
            node_id: self.world.live.get(node_id, broker_record(node_id, self.world.brokers[node_id].epoch))
            for node_id in belief
        }

    @rule(reachable=st.sets(nodes, min_size=2))
    def reachable_brokers_converge(self, reachable: set[int]) -> None:
        self.beat([broker for broker in self.up() if broker.node_id in reachable])

    @rule(node_id=nodes, is_flushed=st.booleans())
    def produce(self, node_id: int, is_flushed: bool) -> None:
        broker = self.world.brokers[node_id]
        self.world.append(broker)
        if is_flushed and broker.lead is not None:
            self.world.flush(broker, self.min_insync)

    @rule(node_id=nodes, is_response_lost=st.booleans())
    def fetch(self, node_id: int, is_response_lost: bool) -> None:
        self.world.fetch(self.world.brokers[node_id], self.min_insync, is_response_lost=is_response_lost)

    @rule(node_id=nodes)
    def mirror_registry(self, node_id: int) -> None:
        if self.world.brokers[node_id].is_up:
            self.world.mirror_registry(self.world.brokers[node_id])

    @rule(seconds=st.sampled_from([1.0, LAG_SECONDS_MAX + 1]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(node_id=nodes, belief=beliefs)
    def propose(self, node_id: int, belief: set[int] | None) -> None:
        self.world.propose(self.world.brokers[node_id], self.believed(belief), self.min_insync)

    @precondition(lambda self: self.world.under_way)
    @rule(choice=st.integers(0, 9), is_lost=st.booleans())
    def commit_succeeds_or_is_lost(self, choice: int, is_lost: bool) -> None:
        commit = self.world.under_way[choice % len(self.world.under_way)]
        if is_lost:
            self.world.lose(commit)
        else:
            self.world.arrive(commit)

    @rule(belief=beliefs, min_insync=st.integers(1, 3))
    def controller_elects(self, belief: set[int] | None, min_insync: int) -> None:
        """The controller may not know the last change of min.insync.replicas."""
        live = self.believed(belief)
        self.world.change(lambda record: update_leadership(record, live, min_insync))
        assert update_leadership(self.world.record, live, min_insync) is None

    @rule()
    def controller_prefers_first_replica(self) -> None:
        self.world.change(lambda record: elect_preferred(record, self.world.live, self.min_insync))

    @rule(wanted=st.one_of(st.none(), targets))
    def operator_reassigns(self, wanted: tuple[int, ...] | None) -> None:
        with suppress(HeadraceError):
            self.world.change(
                lambda record: cancel_reassignment(record) if wanted is None else begin_reassignment(record, wanted)
            )

    @rule(belief=beliefs)
    def reassignment_advances(self, belief: set[int] | None) -> None:
        live = self.believed(belief)
        self.world.change(lambda record: complete_reassignment(record, self.min_insync, live))

    @rule(min_insync=st.integers(1, 3))
    def min_insync_is_altered(self, min_insync: int) -> None:
        self.min_insync = min_insync

    @rule(node_id=nodes, is_noticed=st.booleans(), is_disk_lost=st.booleans())
    def stop(self, node_id: int, is_noticed: bool, is_disk_lost: bool) -> None:
        broker = self.world.brokers[node_id]
        if broker.is_up:
            self.world.stop(broker)
        if is_noticed:
            self.world.live.pop(node_id, None)
        if is_disk_lost:
            self.world.lose_disk(broker)

    @rule(node_id=nodes)
    def session_ends(self, node_id: int) -> None:
        """The session may also end for a broker that runs on and learns of it later."""
        self.world.live.pop(node_id, None)

    @rule(node_id=nodes, is_registered=st.booleans())
    def restart(self, node_id: int, is_registered: bool) -> None:
        broker = self.world.brokers[node_id]
        if not broker.is_up:
            self.world.start(broker)
        if broker.has_lost_disk:
            self.world.change(lambda record: remove_from_isr(record, node_id, self.min_insync))
            broker.has_lost_disk = False
        if is_registered:
            self.world.register(broker)
        self.world.mirror_registry(broker)

    @rule(node_id=nodes, is_draining=st.booleans())
    def drain(self, node_id: int, is_draining: bool) -> None:
        if node_id in self.world.live:
            self.world.live[node_id] = replace(self.world.live[node_id], is_draining=is_draining)

    @invariant()
    def no_committed_record_is_lost(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """I26: once all are up and reach each other, all replicas are in sync and all is committed."""
        if not hasattr(self, "world"):
            return
        self.min_insync = min(self.min_insync, len(self.world.record.replicas) - len(self.world.record.removing))
        for node_id in self.world.brokers:
            self.restart(node_id, is_registered=True)
            self.drain(node_id, is_draining=False)
        for _ in range(12):
            self.beat(self.up())
        record = self.world.record
        if not record.isr and not record.elr:
            return  # every disk that had everything was lost
        leader = self.world.brokers[record.leader]
        assert {*record.isr} == {*record.replicas}
        assert not record.adding
        assert not record.removing
        assert leader.high_watermark == len(leader.log) >= len(self.world.committed)
        for node_id in record.replicas:
            assert self.world.brokers[node_id].log == leader.log

    def beat(self, brokers: list[Broker]) -> None:
        """The controller and these brokers do all that they have to, once."""
        world = self.world
        world.now += 1.0
        world.change(self.settled)
        world.change(lambda record: complete_reassignment(record, self.min_insync, world.live))
        for broker in brokers:
            world.mirror_registry(broker)
            world.append(broker)
            world.flush(broker, self.min_insync)
        for _ in range(3):
            for broker in brokers:
                world.fetch(broker, self.min_insync)
        for broker in brokers:
            world.propose(broker, world.live, self.min_insync)
        while world.under_way:
            world.arrive(world.under_way[0])


ReplicationMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestReplicationMachine = ReplicationMachine.TestCase
