"""ShareFetch: versions 1 and 2. Settles what the request says of earlier messages, then leases others.

The session's epoch moves once for both. What is settled is applied before partitions are forgotten, and before anything
is leased; the answer leaves when it is committed. A fetch that finds nothing waits up to `max_wait_ms`, or until its
member says something else, which would have to wait for this answer. It answers as soon as there is anything
(`min_bytes` is for logs), and never with more messages than `max_records`, whatever the acquire mode: a batch is sent
whole, but only what is listed is leased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.lease_poll import LeasePoll, LeaseTarget, WantedLeases
from headrace.broker.share_answers import Leaders, as_told, check_member
from headrace.broker.share_leases import ShareLeases
from headrace.machines.share_sessions import CLOSING_EPOCH, OPENING_EPOCH, PartitionKey, ShareSession
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.runtime.clock import Clock
from headrace.wire.messages.share_fetch import (
    AcknowledgementBatch,
    AcquiredRecords,
    LeaderIdAndEpoch,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

_NOTHING = b""
_DELIVERY_COUNT_MAX = 2**15 - 1

Acknowledgements = Mapping[PartitionKey, Sequence[AcknowledgementBatch]]


class ShareFetch:
    def __init__(self, catalogue: Catalogue, leases: ShareLeases, clock: Clock) -> None:
        self._catalogue = catalogue
        self._leases = leases
        self._clock = clock

    async def handle(self, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
        leases, epoch = self._leases, request.share_session_epoch
        acknowledged = {
            (topic.topic_id, one.partition_index): one.acknowledgement_batches
            for topic in request.topics
            for one in topic.partitions
            if one.acknowledgement_batches
        }
        try:
            group_id, member_id = check_member(request.group_id, request.member_id)
            _check_renewal(request)
            session = leases.sessions.begin_fetch(group_id, member_id, epoch, settles=bool(acknowledged))
        except HeadraceError as error:
            return _refused(error, acknowledged)
        if epoch == OPENING_EPOCH:
            leases.bind(session, context)
        leases.stop_waiting(session)
        settled = {
            key: leases.settle(session, key, batches, renews=request.is_renew_ack)
            for key, batches in acknowledged.items()
        }
        answer = _Answer(self._catalogue)
        if epoch == CLOSING_EPOCH:
            leases.end(session)
        else:
            _update(session, request)
            if not request.is_renew_ack:
                await self._lease(session, request, answer)
        for key, one in settled.items():
            answer.acknowledge(key, await one.outcome())
        return answer.response(leases.lock_ms(group_id))

    async def _lease(self, session: ShareSession, request: ShareFetchRequest, answer: _Answer) -> None:
        leases = self._leases
        places: dict[tuple[str, int], PartitionKey] = {}
        for key in session.in_turn():
            try:
                places[leases.topic(key).name, key[1]] = key
            except HeadraceError as error:
                answer.refuse(key, error)
        poll = LeasePoll(leases.subscriptions, self._clock, session.group_id, session.member_id, places)
        wanted = WantedLeases(
            count_max=request.max_records,
            bytes_max=min(request.max_bytes, self._catalogue.config.fetch_max_bytes),
            seconds=0.0 if answer else request.max_wait_ms / 1000,
        )
        await leases.wait(session, poll, wanted)
        if session.is_over:
            poll.give_back()  # it was leased after all else had come back
            return
        for target in poll.targets:
            answer.take(places[target.topic, target.index], target)


class _Answer:
    """Partitions of which there is nothing to say are not in it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._leaders = Leaders(catalogue)
        self._partitions: dict[PartitionKey, PartitionData] = {}

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def take(self, key: PartitionKey, target: LeaseTarget) -> None:
        if target.error is not None:
            self.refuse(key, target.error)
        elif target.leased is not None:
            data = self._data(key)
            data.records = target.leased.records
            data.acquired_records = [
                AcquiredRecords(first, last, min(attempt, _DELIVERY_COUNT_MAX))
                for first, last, attempt in target.leased.granted
            ]

    def refuse(self, key: PartitionKey, error: HeadraceError) -> None:
        data, told = self._data(key), as_told(error)
        data.error_code, data.error_message = told.code, told.message
        data.current_leader = self._leaders.of(key, told)

    def acknowledge(self, key: PartitionKey, error: HeadraceError | None) -> None:
        data = self._data(key)
        if error is not None:
            data.acknowledge_error_code, data.acknowledge_error_message = error.code, error.message
            if not data.error_code:
                data.current_leader = self._leaders.of(key, error)

    def response(self, lock_ms: int) -> ShareFetchResponse:
        topics: dict[UUID, ShareFetchableTopicResponse] = {}
        for (topic_id, _), data in self._partitions.items():
            topics.setdefault(topic_id, ShareFetchableTopicResponse(topic_id=topic_id)).partitions.append(data)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=lock_ms,
            responses=list(topics.values()),
            node_endpoints=self._leaders.endpoints,
        )

    def _data(self, key: PartitionKey) -> PartitionData:
        data = self._partitions.get(key)
        if data is None:
            data = self._partitions[key] = PartitionData(
                partition_index=key[1], current_leader=LeaderIdAndEpoch(), records=_NOTHING
            )
        return data


def _update(session: ShareSession, request: ShareFetchRequest) -> None:
    for topic in request.topics:
        for one in topic.partitions:
            session.add((topic.topic_id, one.partition_index))
    for forgotten in request.forgotten_topics_data:
        for index in forgotten.partitions:
            session.forget((forgotten.topic_id, index))


def _check_renewal(request: ShareFetchRequest) -> None:
    if request.is_renew_ack and (request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms):
        raise InvalidRequest("a request that renews leases cannot fetch records; set its limits to 0")


def _refused(error: HeadraceError, acknowledged: Acknowledgements) -> ShareFetchResponse:
    """The whole request; what it acknowledged was not settled, which is said of each partition, too."""
    topics: dict[UUID, ShareFetchableTopicResponse] = {}
    for topic_id, index in acknowledged:
        topic = topics.setdefault(topic_id, ShareFetchableTopicResponse(topic_id=topic_id))
        topic.partitions.append(
            PartitionData(
                partition_index=index,
                acknowledge_error_code=error.code,
                acknowledge_error_message=error.message,
                current_leader=LeaderIdAndEpoch(),
                records=_NOTHING,
            )
        )
    return ShareFetchResponse(error_code=error.code, error_message=error.message, responses=list(topics.values()))
