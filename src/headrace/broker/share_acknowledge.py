"""ShareAcknowledge: versions 1 and 2. Settles what was leased by ShareFetch, and answers when that is committed."""

from __future__ import annotations

from uuid import UUID

from headrace.broker.catalogue import Catalogue
from headrace.broker.context import RequestContext
from headrace.broker.share_answers import Leaders, check_member
from headrace.broker.share_leases import ShareLeases
from headrace.machines.share_sessions import CLOSING_EPOCH, PartitionKey
from headrace.model.errors import HeadraceError
from headrace.wire.messages.share_acknowledge import (
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


class ShareAcknowledge:
    def __init__(self, catalogue: Catalogue, leases: ShareLeases) -> None:
        self._catalogue = catalogue
        self._leases = leases

    async def handle(self, request: ShareAcknowledgeRequest, _context: RequestContext) -> ShareAcknowledgeResponse:
        leases, epoch, renews = self._leases, request.share_session_epoch, request.is_renew_ack
        asked = {
            (topic.topic_id, one.partition_index): one.acknowledgement_batches
            for topic in request.topics
            for one in topic.partitions
        }
        try:
            group_id, member_id = check_member(request.group_id, request.member_id)
            session = leases.sessions.begin_acknowledge(group_id, member_id, epoch)
        except HeadraceError as error:
            refused = self._answer(dict.fromkeys(asked, error))
            refused.error_code, refused.error_message = error.code, error.message
            return refused
        leases.stop_waiting(session)
        settled = {key: leases.settle(session, key, batches, renews=renews) for key, batches in asked.items()}
        if epoch == CLOSING_EPOCH:
            leases.end(session)
        response = self._answer({key: await one.outcome() for key, one in settled.items()})
        response.acquisition_lock_timeout_ms = leases.lock_ms(group_id)
        return response

    def _answer(self, outcomes: dict[PartitionKey, HeadraceError | None]) -> ShareAcknowledgeResponse:
        leaders = Leaders(self._catalogue)
        topics: dict[UUID, ShareAcknowledgeTopicResponse] = {}
        for key, error in outcomes.items():
            topic = topics.setdefault(key[0], ShareAcknowledgeTopicResponse(topic_id=key[0]))
            answer = PartitionData(partition_index=key[1], current_leader=leaders.of(key, error))
            if error is not None:
                answer.error_code, answer.error_message = error.code, error.message
            topic.partitions.append(answer)
        return ShareAcknowledgeResponse(responses=list(topics.values()), node_endpoints=leaders.endpoints)
