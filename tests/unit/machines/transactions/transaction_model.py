"""A model of the surroundings of the transaction machine: a log that is flushed later, partitions, and producers.

It takes the same steps as the broker's coordinator, but one at a time, so that anything can happen between two of them.
An append is durable only after a flush. A response is sent only when its result is durable. A crash keeps the flushed
entries and any number of the others.

Every batch has the label of its transaction. The model checks that all batches of one label have the same outcome, and
that no batch is committed without a request to commit it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TopicPartition, TransactionMetadata
from headrace.machines.transactions.transactions import TransactionStates
from headrace.model.errors import (
    ConcurrentTransactions,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTransactionState,
)

ID = "shop"
TIMEOUT_MS = 60_000
TIMEOUT_MAX_MS = 900_000

OnSuccess = Callable[[ProducerIdAndEpoch], None]
OnError = Callable[[HeadraceError], None]


@dataclass(frozen=True)
class Data:
    producer: ProducerIdAndEpoch
    label: int


@dataclass(frozen=True)
class Marker:
    producer: ProducerIdAndEpoch
    is_commit: bool


class SimPartition:
    """Its epochs and open transactions are derived from its entries, as a broker does it after a crash."""

    def __init__(self, watch: Watch) -> None:
        self.entries: list[Data | Marker] = []
        self.durable = 0
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[Data]] = {}
        self._watch = watch

    def produce(self, data: Data) -> None:
        producer = data.producer
        if producer.epoch < self.epochs.get(producer.id, 0):
            raise InvalidProducerEpoch
        if any(other.producer != producer for other in self.open.get(producer.id, [])):
            raise InvalidTransactionState
        assert all(other.label == data.label for other in self.open.get(producer.id, [])), "two became one"
        assert data.label not in self._watch.outcomes, "it has ended already"
        self._append(data)

    def mark(self, marker: Marker) -> None:
        producer = marker.producer
        if not self.has_marker(producer):
            assert producer.epoch >= self.epochs.get(producer.id, 0), "only the future may write here"
            self._append(marker)

    def has_marker(self, producer: ProducerIdAndEpoch) -> bool:
        was_told = any(isinstance(entry, Marker) and entry.producer.id == producer.id for entry in self.entries)
        return was_told and producer.id not in self.open and self.epochs.get(producer.id, -1) >= producer.epoch

    def crash(self, kept: int) -> None:
        entries, self.entries, self.epochs, self.open = self.entries[:kept], [], {}, {}
        for entry in entries:
            self._append(entry)
        self.durable = len(self.entries)

    def committed(self) -> list[int]:
        """The labels that readers see."""
        labels: list[int] = []
        waiting: dict[int, list[int]] = {}
        for entry in self.entries:
            if isinstance(entry, Data):
                waiting.setdefault(entry.producer.id, []).append(entry.label)
            else:
                ended = waiting.pop(entry.producer.id, [])
                labels += ended if entry.is_commit else []
        return labels

    def _append(self, entry: Data | Marker) -> None:
        self.entries.append(entry)
        self.epochs[entry.producer.id] = entry.producer.epoch
        if isinstance(entry, Data):
            self.open.setdefault(entry.producer.id, []).append(entry)
        else:
            for data in self.open.pop(entry.producer.id, []):
                self._watch.ended(data.label, entry.is_commit)


class Watch:
    """What may happen to a label, and what has happened."""

    def __init__(self) -> None:
        self.outcomes: dict[int, bool] = {}
        self.commit_asked: set[int] = set()
        self.promised: dict[int, set[TopicPartition]] = {}  # acknowledged commits, and their partitions

    def ended(self, label: int, is_commit: bool) -> None:
        assert self.outcomes.setdefault(label, is_commit) is is_commit, "partitions disagree"
        assert not is_commit or label in self.commit_asked, "nobody has asked for that"


@dataclass
class Ending:
    transaction: TransactionMetadata
    end_offset: int
    marker_ends: dict[TopicPartition, int] = field(default_factory=dict)  # up to where the partition must be flushed
    then: list[Callable[[], None]] = field(default_factory=list)


class World:
    def __init__(self, first_epoch: int, partitions: int = 3) -> None:
        self.watch = Watch()
        self.partitions = {("t", index): SimPartition(self.watch) for index in range(partitions)}
        self.machine = TransactionStates(TIMEOUT_MAX_MS)
        self.log: list[TransactionMetadata] = []
        self.durable = 0
        self.now_ms = 0
        self.endings: dict[str, Ending] = {}
        self._first_epoch = first_epoch
        self._joining: dict[TopicPartition, int] = {}
        self._answers: list[tuple[int, Callable[[], None]]] = []
        self._producer_ids = 0
        self._labels = 0

    # What producers ask

    def init(
        self, claim: ProducerIdAndEpoch | None, on_success: OnSuccess, on_error: OnError, *, again: bool = False
    ) -> None:
        try:
            transaction = self.machine.init(ID, TIMEOUT_MS, claim, self._spare(), self.now_ms)
        except HeadraceError as error:
            self._respond(lambda error=error: on_error(error))  # type: ignore[misc]
            return
        if self.machine.find(ID) is None:
            transaction = replace(transaction, producer=ProducerIdAndEpoch(transaction.producer.id, self._first_epoch))
        self._store(transaction)
        if not transaction.is_ending:
            self._respond(lambda: on_success(transaction.producer))
        elif again:
            on_error(ConcurrentTransactions())
        else:
            self.endings[ID].then.append(lambda: self.init(claim, on_success, on_error, again=True))

    def join(
        self, producer: ProducerIdAndEpoch, where: TopicPartition, on_success: OnSuccess, on_error: OnError
    ) -> None:
        try:
            transaction = self.machine.add(ID, producer, {where}, self.now_ms)
        except HeadraceError as error:
            self._respond(lambda error=error: on_error(error))  # type: ignore[misc]
            return
        if transaction is not self.machine.find(ID):
            self._store(transaction)
            self._joining.setdefault(where, len(self.log))
        self._respond(lambda: on_success(producer))

    def produce(self, producer: ProducerIdAndEpoch, where: TopicPartition, label: int, on_error: OnError) -> bool:
        try:
            self.machine.verify(ID, producer, where)
            if self._joining.get(where, 0) > self.durable:
                raise ConcurrentTransactions
            self.partitions[where].produce(Data(producer, label))
        except HeadraceError as error:
            on_error(error)
            return False
        return True

    def end(
        self,
        producer: ProducerIdAndEpoch,
        on_success: OnSuccess,
        on_error: OnError,
        *,
        is_commit: bool,
        bumps_epoch: bool,
    ) -> None:
        try:
            transaction = self.machine.end(
                ID, producer, self._spare(), self.now_ms, is_commit=is_commit, bumps_epoch=bumps_epoch
            )
        except HeadraceError as error:
            self._respond(lambda error=error: on_error(error))  # type: ignore[misc]
            return
        if transaction is not self.machine.find(ID):
            self._store(transaction)
        if transaction.is_ending:
            self.endings[ID].then.append(lambda: on_success(transaction.next_producer))
        else:
            self._respond(lambda: on_success(transaction.next_producer))

    def acknowledge(self, label: int | None) -> set[TopicPartition]:
        """A producer ends its transaction when all it sent is acknowledged, and so durable; where that is."""
        written = set()
        for where, partition in self.partitions.items():
            if any(isinstance(entry, Data) and entry.label == label for entry in partition.entries):
                partition.durable = len(partition.entries)
                written.add(where)
        return written

    def new_label(self) -> int:
        self._labels += 1
        return self._labels

    # What the coordinator does by itself, step by step

    def flush(self) -> None:
        self.durable = len(self.log)
        ready = [response for end_offset, response in self._answers if end_offset <= self.durable]
        self._answers = [entry for entry in self._answers if entry[0] > self.durable]
        for response in ready:
            response()

    def tell(self, where: TopicPartition) -> None:
        """Write the marker of a decided transaction to one partition, if that may be."""
        ending = self.endings.get(ID)
        if ending is None or ending.end_offset > self.durable or where not in ending.transaction.partitions:
            return
        partition = self.partitions[where]
        partition.mark(Marker(ending.transaction.producer, ending.transaction.is_commit))
        ending.marker_ends[where] = len(partition.entries)

    def complete(self) -> None:
        """Complete a transaction whose markers are on disk in all partitions, then run its waiting callbacks."""
        ending = self.endings.get(ID)
        if ending is None or ending.end_offset > self.durable:
            return
        if any(
            self.partitions[where].durable < ending.marker_ends.get(where, 2**31)
            for where in ending.transaction.partitions
        ):
            return
        del self.endings[ID]
        self._store(self.machine.ended(ID, self.now_ms))
        for then in ending.then:
            then()

    def pass_time(self, ms: int) -> bool:
        """Return whether a transaction timed out."""
        self.now_ms += ms
        timed_out = self.machine.timed_out(self.now_ms)
        for transaction in timed_out:
            self._store(transaction)
        return bool(timed_out)

    def crash(self, kept: int, kept_in_partitions: int) -> None:
        """Drop all waiting callbacks; of the unflushed entries keep only the first `kept`."""
        self.log = self.log[: self.durable + kept]
        for partition in self.partitions.values():
            partition.crash(partition.durable + kept_in_partitions)
        self.machine = TransactionStates(TIMEOUT_MAX_MS)
        for transaction in self.log:
            self.machine.restore(transaction, self.now_ms)
        self.durable = len(self.log)
        self.endings, self._joining, self._answers = {}, {}, []
        transaction_now = self.machine.find(ID)
        if transaction_now is not None and transaction_now.is_ending:
            self.endings[ID] = Ending(transaction_now, self.durable)

    def settle(self) -> None:
        """Nothing goes wrong for a while."""
        for _ in range(4):
            self.flush()
            for where, partition in self.partitions.items():
                self.tell(where)
                partition.durable = len(partition.entries)
            self.complete()

    def _respond(self, answer: Callable[[], None]) -> None:
        """Now, or when what is known is durable."""
        if len(self.log) <= self.durable:
            answer()
        else:
            self._answers.append((len(self.log), answer))

    def _store(self, transaction: TransactionMetadata) -> None:
        self.log.append(transaction)
        self.machine.apply(transaction)
        if transaction.is_ending:
            assert ID not in self.endings
            self._joining.clear()
            self.endings[ID] = Ending(transaction, len(self.log))

    def _spare(self) -> int | None:
        if not self.machine.needs_producer_id(ID):
            return None
        self._producer_ids += 1
        return self._producer_ids
