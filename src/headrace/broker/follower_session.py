"""The follower's side of an incremental fetch session: requests contain only changed positions.

The leader returns only changed partitions, so a partition that is missing in a response has no new records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.model.broker_configs import BrokerConfig
from headrace.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

if TYPE_CHECKING:
    from headrace.broker.replica_fetcher import Followed

_EPOCH_MAX = (1 << 31) - 1


class FollowerSession:
    def __init__(self, node_id: int, broker_epoch: int) -> None:
        self._replica = ReplicaState(replica_id=node_id, replica_epoch=broker_epoch)
        self._id = 0
        self._epoch = 0
        self._sent: dict[tuple[UUID, int], tuple[Followed, tuple[int, ...]]] = {}

    def reset(self) -> None:
        """Start a new session with the next request, because the leader may not know the current one."""
        self._id = self._epoch = 0
        self._sent.clear()

    def request(self, wanted: Sequence[Followed], config: BrokerConfig) -> FetchRequest:
        """Build a fetch request for exactly these partitions from their current positions."""
        if self._epoch == 0:
            self._sent.clear()
        topics: dict[UUID, FetchTopic] = {}
        keys = set[tuple[UUID, int]]()
        for followed in wanted:
            partition = followed.partition
            key = partition.topic_id, partition.index
            keys.add(key)
            position = _position(followed)
            if self._sent.get(key) == (followed, position):
                continue
            self._sent[key] = followed, position
            topic = topics.setdefault(partition.topic_id, FetchTopic(topic_id=partition.topic_id))
            leader_epoch, fetch_offset, last_epoch, start_offset = position
            topic.partitions.append(
                FetchPartition(
                    partition=partition.index,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=fetch_offset,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=start_offset,
                    partition_max_bytes=config.replica_fetch_max_bytes,
                )
            )
        return FetchRequest(
            replica_state=self._replica,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=list(topics.values()),
            forgotten_topics_data=self._forget(self._sent.keys() - keys),
        )

    def answers(self, response: FetchResponse) -> Iterator[tuple[Followed, PartitionData]]:
        self._id = response.session_id
        self._epoch = 0 if not self._id else self._epoch % _EPOCH_MAX + 1
        for topic in response.responses:
            for data in topic.partitions:
                sent = self._sent.get((topic.topic_id, data.partition_index))
                if sent is not None:
                    yield sent[0], data

    def _forget(self, keys: Iterable[tuple[UUID, int]]) -> list[ForgottenTopic]:
        topics: dict[UUID, ForgottenTopic] = {}
        for key in sorted(keys):
            del self._sent[key]
            topics.setdefault(key[0], ForgottenTopic(topic_id=key[0])).partitions.append(key[1])
        return list(topics.values())


def _position(followed: Followed) -> tuple[int, int, int, int]:
    log = followed.partition.log
    return followed.leader_epoch, log.end_offset, _last_epoch(followed.partition), log.start_offset


def _last_epoch(partition: Partition) -> int:
    """Return the epoch of the last batch, or -1 for an empty log, which cannot diverge from the leader's."""
    log = partition.log
    if log.end_offset == log.start_offset:
        return -1
    return log.epochs.epoch_at(log.end_offset - 1)
