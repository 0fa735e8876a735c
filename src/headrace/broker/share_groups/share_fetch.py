"""ShareFetch and ShareAcknowledge: lease and settle messages for members of share groups.

- A ShareFetch settles earlier messages, then leases others; the session epoch is incremented once. Settlements are
  applied before partitions are removed from the session and before messages are leased; the response is sent when they
  are committed.
- A ShareFetch that finds no messages waits up to `max_wait_ms`, or until the next request of its member, whose response
  would have to wait for this one.
- It responds as soon as there are messages (`min_bytes` does not apply), and never with more than `max_records`,
  whatever the acquire mode: a batch is sent completely, but only the listed offsets are leased.
- A ShareAcknowledge settles messages, and responds when the settlements are committed.
"""

from __future__ import annotations

from uuid import UUID

from headrace.broker.handlers import RequestContext, report_error
from headrace.broker.queues.lease_poll import LeasePoll, LeaseTarget
from headrace.broker.share_groups.share_leases import ShareLeases, as_share_error
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.share_groups.share_sessions import CLOSING_EPOCH, OPENING_EPOCH, PartitionKey, ShareSession
from headrace.model.errors import HeadraceError, InvalidRequest, NotLeader
from headrace.model.registry_records import NO_EPOCH, NO_LEADER
from headrace.runtime.clock import Clock
from headrace.wire.messages.metadata import NodeEndpoint
from headrace.wire.messages.share_groups import (
    AcquiredRecords,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareLeaderIdAndEpoch,
)

_DELIVERY_COUNT_MAX = 2**15 - 1


def check_member(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    if not group_id:
        raise InvalidRequest("the request has no share group id")
    if not member_id:
        raise InvalidRequest("the request has no member id")
    return group_id, member_id


class PartitionLeaders:
    """Collects, for one response, the leaders of partitions that other brokers lead."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.endpoints: dict[int, NodeEndpoint] = {}

    def of(self, key: PartitionKey, error: HeadraceError | None) -> ShareLeaderIdAndEpoch:
        if not isinstance(error, NotLeader):
            return ShareLeaderIdAndEpoch()
        topic = self._catalogue.find_by_id(key[0])
        partition_record = None if topic is None else topic.partition_records.get(key[1])
        node = None if partition_record is None else self._catalogue.nodes.get(partition_record.leader)
        if partition_record is None or node is None:
            return ShareLeaderIdAndEpoch(NO_LEADER, NO_EPOCH)
        self.endpoints[node.node_id] = NodeEndpoint(node.node_id, node.host, node.port, node.rack)
        return ShareLeaderIdAndEpoch(partition_record.leader, partition_record.leader_epoch)


class ShareFetchRequests:
    def __init__(self, catalogue: Catalogue, leases: ShareLeases, clock: Clock) -> None:
        self._catalogue = catalogue
        self._leases = leases
        self._clock = clock

    async def fetch(self, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
        leases, epoch = self._leases, request.share_session_epoch
        builder = _ShareFetchResponseBuilder(self._catalogue)
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
            for key in acknowledged:
                builder.add_acknowledgement(key, error)
            response = builder.response()
            report_error(response, error)
            return response
        if epoch == OPENING_EPOCH:
            leases.bind(session, context)
        leases.stop_waiting(session)
        settled = {
            key: leases.settle(session, key, batches, renews=request.is_renew_ack)
            for key, batches in acknowledged.items()
        }
        if epoch == CLOSING_EPOCH:
            leases.end(session)
        else:
            _update(session, request)
            if not request.is_renew_ack:
                await self._lease(session, request, builder)
        for key, result in settled.items():
            builder.add_acknowledgement(key, await result.committed())
        return builder.response(leases.lock_ms(group_id))

    async def _lease(
        self, session: ShareSession, request: ShareFetchRequest, builder: _ShareFetchResponseBuilder
    ) -> None:
        leases = self._leases
        partitions: dict[tuple[str, int], PartitionKey] = {}
        for key in session.in_rotation():
            try:
                partitions[leases.topic(key).name, key[1]] = key
            except HeadraceError as error:
                builder.add_error(key, error)
        poll = LeasePoll(leases.subscriptions, self._clock, session.group_id, session.member_id, partitions)
        bytes_max = min(request.max_bytes, self._catalogue.config.fetch_max_bytes)
        wait_seconds = 0.0 if builder else request.max_wait_ms / 1000
        await leases.wait(session, poll, request.max_records, bytes_max, wait_seconds)
        if session.is_over:
            poll.release_leases()  # leased after the session ended and released the others
            return
        for target in poll.targets:
            builder.add_target(partitions[target.topic, target.index], target)

    async def acknowledge(self, request: ShareAcknowledgeRequest, _context: RequestContext) -> ShareAcknowledgeResponse:
        leases, epoch, renews = self._leases, request.share_session_epoch, request.is_renew_ack
        requested = {
            (topic.topic_id, one.partition_index): one.acknowledgement_batches
            for topic in request.topics
            for one in topic.partitions
        }
        try:
            group_id, member_id = check_member(request.group_id, request.member_id)
            session = leases.sessions.begin_acknowledge(group_id, member_id, epoch)
        except HeadraceError as error:
            response = self._acknowledge_response(dict.fromkeys(requested, error))
            report_error(response, error)
            return response
        leases.stop_waiting(session)
        settled = {key: leases.settle(session, key, batches, renews=renews) for key, batches in requested.items()}
        if epoch == CLOSING_EPOCH:
            leases.end(session)
        response = self._acknowledge_response({key: await result.committed() for key, result in settled.items()})
        response.acquisition_lock_timeout_ms = leases.lock_ms(group_id)
        return response

    def _acknowledge_response(self, errors: dict[PartitionKey, HeadraceError | None]) -> ShareAcknowledgeResponse:
        leaders = PartitionLeaders(self._catalogue)
        topics: dict[UUID, ShareAcknowledgeTopicResponse] = {}
        for key, error in errors.items():
            topic = topics.setdefault(key[0], ShareAcknowledgeTopicResponse(topic_id=key[0]))
            data = ShareAcknowledgePartitionData(partition_index=key[1], current_leader=leaders.of(key, error))
            if error is not None:
                report_error(data, error)
            topic.partitions.append(data)
        endpoints = list(leaders.endpoints.values())
        return ShareAcknowledgeResponse(responses=list(topics.values()), node_endpoints=endpoints)


class _ShareFetchResponseBuilder:
    """Builds a response, without the partitions that have no result."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._leaders = PartitionLeaders(catalogue)
        self._partitions: dict[PartitionKey, ShareFetchPartitionData] = {}

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def add_target(self, key: PartitionKey, target: LeaseTarget) -> None:
        if target.error is not None:
            self.add_error(key, target.error)
        elif target.leased is not None:
            data = self._data(key)
            data.records = target.leased.records
            data.acquired_records = [
                AcquiredRecords(first, last, min(attempt, _DELIVERY_COUNT_MAX))
                for first, last, attempt in target.leased.granted
            ]

    def add_error(self, key: PartitionKey, error: HeadraceError) -> None:
        data, share_error = self._data(key), as_share_error(error)
        report_error(data, share_error)
        data.current_leader = self._leaders.of(key, share_error)

    def add_acknowledgement(self, key: PartitionKey, error: HeadraceError | None) -> None:
        data = self._data(key)
        if error is not None:
            data.acknowledge_error_code, data.acknowledge_error_message = error.code, error.message
            if not data.error_code:
                data.current_leader = self._leaders.of(key, error)

    def response(self, lock_ms: int = 0) -> ShareFetchResponse:
        topics: dict[UUID, ShareFetchableTopicResponse] = {}
        for (topic_id, _), data in self._partitions.items():
            topics.setdefault(topic_id, ShareFetchableTopicResponse(topic_id=topic_id)).partitions.append(data)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=lock_ms,
            responses=list(topics.values()),
            node_endpoints=list(self._leaders.endpoints.values()),
        )

    def _data(self, key: PartitionKey) -> ShareFetchPartitionData:
        data = self._partitions.get(key)
        if data is None:
            data = self._partitions[key] = ShareFetchPartitionData(
                partition_index=key[1], current_leader=ShareLeaderIdAndEpoch(), records=b""
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
