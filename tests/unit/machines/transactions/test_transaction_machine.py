"""Any order of producers, retries, delays, timeouts and crashes leaves every transaction atomic."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.machines.transactions.transaction_model import ID, TIMEOUT_MS, World

from headrace.machines.transactions.transaction_state import EPOCH_LAST, ProducerIdAndEpoch, TopicPartition
from headrace.machines.transactions.transactions import TransactionStates
from headrace.model.errors import (
    ConcurrentTransactions,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
)

places = st.sampled_from([("t", 0), ("t", 1), ("t", 2)])
picks = st.sampled_from([0, 0, 0, 1, 1, 2, 5])
quick = st.booleans()
REFUSALS = (ProducerFenced, InvalidProducerIdMapping, InvalidProducerEpoch, InvalidTransactionState)


class Client:
    """A producer and its view of its state. It sends one request at a time and retries those without a response."""

    def __init__(self, world: World, *, bumps_epoch: bool) -> None:
        self.world = world
        self.bumps_epoch = bumps_epoch
        self.producer: ProducerIdAndEpoch | None = None
        self.label: int | None = None
        self.joined: set[TopicPartition] = set()
        self.has_written = False
        self.outcome: bool | None = None  # requested, without a response so far
        self.doing: str | None = None
        self.attempts = 0
        self.is_dead = False
        self.is_innocent = True  # no other client changed anything
        self.late: list[Callable[[], None]] = []

    def init(self) -> None:
        """For the first time, or (with a claim) to go on after an error."""
        if self.is_dead or self.doing == "produce":
            return
        claim, self.doing = self.producer, "init"
        self.attempts += 1
        attempt = self.attempts

        def result(producer: ProducerIdAndEpoch) -> None:
            if self.attempts != attempt or self.doing != "init":
                return  # it does not listen any more
            assert producer.epoch <= EPOCH_LAST
            assert producer != claim, "it asked for another epoch"
            self._reset_log(producer)

        self.world.init(claim, result, self._refused)

    def produce(self, where: TopicPartition) -> None:
        """In the older protocol, send AddPartitionsToTxn, and produce later."""
        producer = self.producer
        if producer is None or self.is_dead or self.doing is not None:
            return
        self.label = label = self.label or self.world.new_label()
        self.doing = "produce"

        def send(_: ProducerIdAndEpoch = producer) -> None:
            self.doing = None
            if self.world.produce(producer, where, label, self._refused):
                self.has_written = True

        def send_late(_: ProducerIdAndEpoch = producer) -> None:
            self.world.produce(producer, where, label, _nothing)

        def joined(_: ProducerIdAndEpoch) -> None:
            self.doing = None
            self.joined.add(where)

        if self.bumps_epoch:
            self.late += [lambda: self.world.join(producer, where, send_late, _nothing), send_late]
            self.world.join(producer, where, send, self._refused)
        elif where in self.joined:
            send()
        else:
            self.world.join(producer, where, joined, self._refused)

    def end(self, *, is_commit: bool) -> None:
        """Only what it knows to be open; in the newer protocol it may abort anything."""
        has_begun = self.has_written if self.bumps_epoch else bool(self.joined)
        if self.producer is None or self.is_dead or self.doing is not None:
            return
        if has_begun or (self.bumps_epoch and not is_commit):
            self._end(is_commit)

    def end_again(self) -> None:
        if self.doing == "end" and self.outcome is not None and not self.is_dead:
            self._end(self.outcome)

    def change_its_mind(self) -> None:
        """No good producer does that."""
        self.is_innocent = False
        if self.doing == "end" and self.outcome is not None and not self.is_dead:
            self._end(not self.outcome)

    def notice_crash(self) -> None:
        """Requests in flight get no response; the client will retry those that matter."""
        if self.doing == "produce":
            self.doing = None

    def _end(self, is_commit: bool) -> None:
        producer, label, bumps_epoch = self.producer, self.label, self.bumps_epoch
        assert producer is not None
        self.doing, self.outcome = "end", is_commit
        written = self.world.acknowledge(label)
        if label is not None and is_commit:
            self.world.watch.commit_asked.add(label)

        def result(present: ProducerIdAndEpoch) -> None:
            if label is not None:
                assert self.world.watch.outcomes.get(label, is_commit) is is_commit, "it was told otherwise"
            if self.producer != producer or self.label != label or self.doing != "end":
                return  # a repeated response
            assert present.epoch <= EPOCH_LAST
            assert (present != producer) is bumps_epoch
            if label is not None and is_commit:
                self.world.watch.promised[label] = written
            self._reset_log(present)

        if bumps_epoch:
            self.late.append(lambda: self.world.end(producer, _nobody, _nothing, is_commit=is_commit, bumps_epoch=True))
        self.world.end(producer, result, self._refused, is_commit=is_commit, bumps_epoch=bumps_epoch)

    def _reset_log(self, producer: ProducerIdAndEpoch) -> None:
        self.producer = producer
        self.label, self.outcome, self.doing, self.joined, self.has_written = None, None, None, set(), False

    def _refused(self, error: HeadraceError) -> None:
        if isinstance(error, ConcurrentTransactions):
            if self.doing == "produce":
                self.doing = None
            return
        assert isinstance(error, REFUSALS), error
        assert not self.is_innocent, f"it was refused for nothing: {error!r}"
        self.is_dead = True


def _nobody(_: ProducerIdAndEpoch) -> None:
    """The client of this response is gone."""


def _nothing(_: HeadraceError) -> None:
    """The client of this error is gone."""


class TransactionMachine(RuleBasedStateMachine):
    @initialize(first_epoch=st.sampled_from([0, EPOCH_LAST - 3, EPOCH_LAST - 1, EPOCH_LAST]))
    def start(self, first_epoch: int) -> None:
        self.world = World(first_epoch)
        self.clients: list[Client] = []

    def some(self, pick: int) -> list[Client]:
        """One of the last few, if there are any."""
        return [self.clients[-1 - pick % len(self.clients)]] if self.clients else []

    def mark_clients_as_contended(self) -> None:
        for client in self.clients:
            client.is_innocent = False

    def then(self, is_quick: bool) -> None:
        """All goes well, or all can happen before the last request is done with."""
        if is_quick:
            self.world.settle()

    @rule(bumps_epoch=st.booleans(), is_quick=quick)
    def new_producer_takes_over(self, bumps_epoch: bool, is_quick: bool) -> None:
        self.clients.append(Client(self.world, bumps_epoch=bumps_epoch))
        if len(self.clients) > 1:
            self.mark_clients_as_contended()
        self.clients[-1].init()
        self.then(is_quick)

    @rule(pick=picks, is_quick=quick)
    def producer_reinitializes(self, pick: int, is_quick: bool) -> None:
        for client in self.some(pick):
            client.init()
            self.then(is_quick)

    @rule(pick=picks, where=places, is_quick=quick)
    def producer_produces(self, pick: int, where: TopicPartition, is_quick: bool) -> None:
        for client in self.some(pick):
            client.produce(where)
            self.then(is_quick)

    @rule(where=places)
    def newest_producer_produces_everywhere(self, where: TopicPartition) -> None:
        for place in (where, where, ("t", 0), ("t", 0)):
            self.producer_produces(0, place, is_quick=True)

    @rule(pick=picks, is_commit=st.booleans(), is_quick=quick)
    def producer_ends_transaction(self, pick: int, is_commit: bool, is_quick: bool) -> None:
        for client in self.some(pick):
            client.end(is_commit=is_commit)
            self.then(is_quick)

    @rule(pick=picks, is_quick=quick)
    def producer_retries_end(self, pick: int, is_quick: bool) -> None:
        for client in self.some(pick):
            client.end_again()
            self.then(is_quick)

    @rule(pick=picks, is_quick=quick)
    def producer_ends_with_the_opposite_outcome(self, pick: int, is_quick: bool) -> None:
        for client in self.some(pick):
            client.change_its_mind()
            self.then(is_quick)

    @rule(pick=picks, which=st.integers(0, 20))
    def delayed_request_arrives(self, pick: int, which: int) -> None:
        for client in self.some(pick):
            if client.late:
                client.late[-1 - which % len(client.late)]()

    @rule()
    def log_is_flushed(self) -> None:
        self.world.flush()

    @rule(where=places)
    def a_partition_is_flushed(self, where: TopicPartition) -> None:
        partition = self.world.partitions[where]
        partition.durable = len(partition.entries)

    @rule(where=places)
    def marker_is_written(self, where: TopicPartition) -> None:
        self.world.tell(where)

    @rule()
    def transaction_completes(self) -> None:
        self.world.complete()

    @rule()
    def all_pending_work_completes(self) -> None:
        self.world.settle()

    @rule(part=st.sampled_from([0.1, 1.1]))
    def time_passes(self, part: float) -> None:
        if self.world.pass_time(int(TIMEOUT_MS * part)):
            self.mark_clients_as_contended()

    @rule(kept=st.integers(0, 3), kept_in_partitions=st.integers(0, 3), is_quick=quick)
    def broker_crashes(self, kept: int, kept_in_partitions: int, is_quick: bool) -> None:
        self.world.crash(kept, kept_in_partitions)
        for client in self.clients:
            client.notice_crash()
        self.then(is_quick)

    @rule(where=places, is_commit=st.booleans(), kept=st.integers(0, 1), is_fickle=st.booleans())
    def broker_crashes_before_an_end_has_a_response(
        self, where: TopicPartition, is_commit: bool, kept: int, is_fickle: bool
    ) -> None:
        self.newest_producer_produces_everywhere(where)
        self.producer_ends_transaction(0, is_commit, is_quick=False)
        self.broker_crashes(kept, kept_in_partitions=0, is_quick=True)
        if is_fickle:
            self.producer_ends_with_the_opposite_outcome(0, is_quick=True)

    @invariant()
    def open_partitions_are_known_to_the_coordinator(self) -> None:
        transaction = self.world.machine.find(ID)
        for where, partition in self.world.partitions.items():
            for producer_id in partition.open:
                assert transaction is not None
                assert transaction.is_open
                assert transaction.producer.id == producer_id
                assert where in transaction.partitions

    @invariant()
    def replaying_the_log_rebuilds_the_state(self) -> None:
        replayed = TransactionStates(1)
        for transaction in self.world.log:
            replayed.restore(transaction, self.world.now_ms)
        assert replayed.find(ID) == self.world.machine.find(ID)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.settle()
        world.pass_time(2 * TIMEOUT_MS)
        world.settle()
        for where, partition in world.partitions.items():
            assert not partition.open, "a transaction hangs"
            committed = set(partition.committed())
            assert committed <= world.watch.commit_asked
            promised = {label for label, places in world.watch.promised.items() if where in places}
            assert promised <= committed, "what was told to be committed is lost"
        newcomer = Client(world, bumps_epoch=True)
        newcomer.init()
        world.settle()
        assert newcomer.producer is not None, "the id is of no use to anybody any more"


TransactionMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestTransactionMachine = TransactionMachine.TestCase
