"""The result of reading one partition for a fetch, before the fetch decides whether to respond or to wait.

Records are a slice of the log file, which must be released, or a cold read, which is loaded and checked only if the
response is sent.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.partition import Partition
from headrace.machines.fetch.fetch_sessions import FetchEntry
from headrace.model.errors import FencedLeaderEpoch, HeadraceError, NotLeader, OffsetOutOfRange, UnknownLeaderEpoch
from headrace.storage.log.reading import ColdRead, LogSlice
from headrace.wire.messages.fetch import EpochEndOffset, FetchAbortedTransaction, PartitionData

_COPIED_BYTES_MAX = 1 << 14
_COLD_BYTES_MAX = 1 << 20  # memory limit of one cold read, whatever the client requests
_NO_RECORDS = b""

READ_COMMITTED = 1


class FollowerIdentity(NamedTuple):
    """`broker_epoch` is -1 if the follower does not send it."""

    node_id: int
    broker_epoch: int


class FetchedPartition:
    """`is_exhausted`: there are no more records to read until the partition advances. `end_offset`: the reader may read
    up to here."""

    __slots__ = ("_cold", "_leader_epoch", "_partition", "data", "end_offset", "entry", "is_exhausted", "size_bytes")

    def __init__(
        self, entry: FetchEntry, data: PartitionData, partition: Partition | None = None, end_offset: int = 0
    ) -> None:
        self.entry = entry
        self.data = data
        self.end_offset = end_offset
        self.size_bytes = 0
        self.is_exhausted = False
        self._partition = partition
        self._leader_epoch = -1 if partition is None else partition.leader_epoch
        self._cold: ColdRead | None = None

    @classmethod
    def failed(cls, entry: FetchEntry, error: HeadraceError, partition: Partition | None) -> FetchedPartition:
        return cls(entry, _error_data(entry.partition, error), partition)

    @property
    def is_cold(self) -> bool:
        return self._cold is not None

    def is_for_out_of_sync_follower(self, follower: FollowerIdentity) -> bool:
        return self._partition is not None and is_out_of_sync(self._partition, follower)

    def take(self, records: LogSlice | ColdRead) -> None:
        if isinstance(records, ColdRead):
            # The exact size is known only after the read; it cannot exceed the size of the log.
            assert self._partition is not None
            self._cold = records
            self.size_bytes = min(records.size_bytes_max, self._partition.log.size_bytes)
        else:
            self.data.records = records
            self.size_bytes = len(records)
            self._list_aborted(records.next_offset)

    def release(self) -> None:
        if isinstance(self.data.records, LogSlice):
            self.data.records.release()

    def unpin(self) -> None:
        """Copy a small slice, so that its file may be closed."""
        records = self.data.records
        if isinstance(records, LogSlice) and len(records) <= _COPIED_BYTES_MAX:
            try:
                self.data.records = records.bytes()
            finally:
                records.release()

    async def load(self) -> None:
        """Read and check the cold records. They are then in the page cache, so they can be sent with sendfile."""
        assert self._cold is not None
        assert self._partition is not None
        try:
            loaded = await self._cold.load()
            if not self._partition.is_leader or self._partition.leader_epoch != self._leader_epoch:
                raise NotLeader("this broker lost the leadership while it was reading the records")
            again = self._partition.read(self.entry.fetch_offset, len(loaded), self.end_offset)
            self.data.records = again if isinstance(again, LogSlice) else loaded
            self.size_bytes = len(self.data.records)
            self._list_aborted(again.next_offset if isinstance(again, LogSlice) else self._cold.next_offset)
        except HeadraceError as error:
            self.data = _error_data(self.entry.partition, error)
            self.size_bytes = 0

    def count(self) -> None:
        """Count this result, which is sent to the client."""
        if self._partition is None:
            return
        if self.data.error_code:
            self._partition.counts.failed_fetches += 1
        elif self.size_bytes:
            self._partition.counts.fetched(self.size_bytes)

    def _list_aborted(self, next_offset: int) -> None:
        """List the aborted transactions, whose records a `read_committed` consumer skips."""
        if self.data.aborted_transactions is None or self._partition is None:
            return
        self.data.aborted_transactions = [
            FetchAbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in self._partition.state.aborted(self.entry.fetch_offset, next_offset)
        ]


def read_partition(
    partition: Partition, entry: FetchEntry, size_bytes_max: int, isolation_level: int, *, may_exceed: bool
) -> FetchedPartition:
    """Read at the fetch offset of the entry. `may_exceed`: return a first batch that exceeds `size_bytes_max`."""
    partition.ensure_readable()
    check_leader_epoch(partition, entry.current_leader_epoch)
    stable = partition.last_stable_offset
    end_offset = stable if isolation_level == READ_COMMITTED else partition.high_watermark
    data = PartitionData(
        partition_index=entry.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=stable,
        log_start_offset=partition.log.start_offset,
        aborted_transactions=[] if isolation_level == READ_COMMITTED else None,
        records=_NO_RECORDS,
    )
    fetched = FetchedPartition(entry, data, partition, end_offset)
    if entry.last_fetched_epoch >= 0:
        data.diverging_epoch = _diverging_epoch(partition, entry)
        if data.diverging_epoch is not None:
            return fetched
    return _read_records(fetched, partition, size_bytes_max, may_exceed=may_exceed)


def read_for_follower(
    partition: Partition,
    entry: FetchEntry,
    size_bytes_max: int,
    follower: FollowerIdentity,
    now: float,
    *,
    may_exceed: bool,
) -> FetchedPartition:
    """Like `read_partition`, for a follower: it also gets uncommitted records. A fetch at an offset, in a history that
    does not diverge from the leader's, reports that the follower has flushed everything below that offset."""
    partition.ensure_readable()
    check_leader_epoch(partition, entry.current_leader_epoch)
    log = partition.log
    data = PartitionData(partition_index=entry.partition, log_start_offset=log.start_offset, records=_NO_RECORDS)
    fetched = FetchedPartition(entry, data, partition, log.end_offset)
    if entry.last_fetched_epoch >= 0:
        data.diverging_epoch = _diverging_epoch(partition, entry)
    else:
        _check_empty_log(partition, entry, follower)
    if data.diverging_epoch is None and log.start_offset <= entry.fetch_offset <= log.end_offset:
        partition.record_follower_fetch(
            follower.node_id, follower.broker_epoch, entry.fetch_offset, entry.log_start_offset, now
        )
    data.high_watermark = partition.high_watermark
    data.last_stable_offset = partition.last_stable_offset
    if data.diverging_epoch is not None:
        return fetched
    return _read_records(fetched, partition, size_bytes_max, may_exceed=may_exceed)


def is_out_of_sync(partition: Partition, follower: FollowerIdentity) -> bool:
    return partition.in_sync is not None and follower.node_id not in partition.in_sync.record.isr


def _read_records(
    fetched: FetchedPartition, partition: Partition, size_bytes_max: int, *, may_exceed: bool
) -> FetchedPartition:
    offset, end_offset = fetched.entry.fetch_offset, fetched.end_offset
    if offset >= end_offset:
        if offset > partition.log.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is after the end of the log, {partition.log.end_offset}")
        fetched.is_exhausted = True
        return fetched
    if size_bytes_max <= 0 and not may_exceed:
        return fetched
    records = partition.read(offset, max(size_bytes_max, 1), end_offset)
    if isinstance(records, ColdRead):
        if size_bytes_max > _COLD_BYTES_MAX:
            records = partition.read(offset, _COLD_BYTES_MAX, end_offset)
    elif len(records) > size_bytes_max and not may_exceed:
        records.release()
        return fetched
    fetched.take(records)
    return fetched


def check_leader_epoch(partition: Partition, epoch: int) -> None:
    """Raise unless the client knows the current leader epoch; -1 skips the check."""
    if 0 <= epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"leader epoch {epoch} is older than the current one, {partition.leader_epoch}")
    if epoch > partition.leader_epoch:
        raise UnknownLeaderEpoch(f"leader epoch {epoch} is newer than the current one, {partition.leader_epoch}")


def _diverging_epoch(partition: Partition, entry: FetchEntry) -> EpochEndOffset | None:
    """Return where the reader's history diverges from the leader's (KIP-320), or None."""
    log = partition.log
    epoch, end_offset = log.epochs.end_offset_for(entry.last_fetched_epoch, log.end_offset)
    if epoch < 0:
        raise OffsetOutOfRange(
            f"last fetched epoch {entry.last_fetched_epoch} is newer than {log.epochs.latest}, the latest of the log"
        )
    if epoch < entry.last_fetched_epoch or end_offset < entry.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


def _check_empty_log(partition: Partition, entry: FetchEntry, follower: FollowerIdentity) -> None:
    """Reject a fetch for an empty log that starts above the leader's log start offset, unless the follower is known to
    share the leader's history. The follower then restarts its log at the leader's log start offset.

    An empty log has no last epoch to compare. The records below its log start offset may have been deleted in a history
    that an unclean election ended. The follower would skip the leader's records there, and still join the ISR. A
    follower in the ISR or ELR must not restart lower: it would no longer have all committed records.
    """
    start = partition.log.start_offset
    if partition.in_sync is None or not start < entry.log_start_offset == entry.fetch_offset:
        return
    if not partition.in_sync.shares_history(follower.node_id):
        raise OffsetOutOfRange(
            f"the log of broker {follower.node_id} is empty and starts at {entry.log_start_offset}, the leader's at "
            f"{start}"
        )


def _error_data(partition_index: int, error: HeadraceError) -> PartitionData:
    return PartitionData(partition_index=partition_index, error_code=error.code, high_watermark=-1, records=_NO_RECORDS)
