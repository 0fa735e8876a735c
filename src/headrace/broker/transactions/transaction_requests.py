"""Requests of transactional producers and of joint commits, translated for the transaction coordinator.

InitProducerId also serves producers without transactions: each gets a new producer id with epoch 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.broker.groups.offsets_log import OffsetsLog
from headrace.broker.handlers import ReportErrors, RequestContext, RequestHandler
from headrace.broker.topic_catalogue import Catalogue
from headrace.broker.transactions.transaction_coordinator import TransactionCoordinator
from headrace.broker.transactions.transaction_shard import TransactionShard
from headrace.machines.transactions.joint_commits import (
    NO_SEQUENCE,
    JointCommitMember,
    check_joint_commit_name,
    check_transactional_id,
    joint_commit_of,
    joint_commit_owner_id,
)
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TopicPartition
from headrace.model.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTopic,
    InvalidTransactionState,
    OperationNotAttempted,
    ProducerFenced,
    TransactionAbortable,
)
from headrace.model.names import CONSUMER_OFFSETS, DELAYED_PREFIX, check_group_id, is_internal
from headrace.wire import apis
from headrace.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    BundleMember,
    DescribeBundleRequest,
    DescribeBundleResponse,
    EndBundleRequest,
    EndBundleResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_INIT_FENCES_SINCE = 4  # older versions do not know PRODUCER_FENCED
_FENCES_SINCE = 2
_BATCHED_SINCE = 4  # of AddPartitionsToTxn
_ABORTABLE_SINCE = 5
_BUMPS_SINCE = 5  # of EndTxn: KIP-890


class TransactionRequests:
    def __init__(self, coordinator: TransactionCoordinator, catalogue: Catalogue, offsets_log: OffsetsLog) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._offsets_log = offsets_log

    async def init_producer_id(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        response = InitProducerIdResponse(producer_id=-1, producer_epoch=-1)
        with ReportErrors(response), _fencing_error(context.version, _INIT_FENCES_SINCE):
            response.producer_id, response.producer_epoch = await self._init(request)
        return response

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        if context.version < _BATCHED_SINCE:
            producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
            results = await self._add_partitions(transactional_id, producer, topics, context.version)
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        response = AddPartitionsToTxnResponse()
        for requested in request.transactions:
            transactional_id, topics = requested.transactional_id, requested.topics
            producer = ProducerIdAndEpoch(requested.producer_id, requested.producer_epoch)
            if requested.verify_only:
                results = self._verify_partitions(transactional_id, producer, topics, context.version)
            else:
                results = await self._add_partitions(transactional_id, producer, topics, context.version)
            response.results_by_transaction.append(AddPartitionsToTxnResult(transactional_id, topic_results=results))
        return response

    async def add_offsets(self, request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
        with _fencing_error(context.version, _FENCES_SINCE):
            check_group_id(request.group_id)
            check_transactional_id(request.transactional_id)
            await self._offsets_log.ensure()
            await self._coordinator.of(request.transactional_id).add_to_transaction(
                request.transactional_id,
                ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                [(CONSUMER_OFFSETS, self._offsets_log.partition_index_of(request.group_id))],
            )
        return AddOffsetsToTxnResponse()

    async def end(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        with _fencing_error(context.version, _FENCES_SINCE):
            check_transactional_id(request.transactional_id)
            if request.committed and joint_commit_of(request.transactional_id) is not None:
                raise InvalidTransactionState(f"{request.transactional_id} is part of a joint commit; use EndBundle")
            producer = await self._coordinator.of(request.transactional_id).end(
                request.transactional_id,
                ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                is_commit=request.committed,
                bumps_epoch=context.version >= _BUMPS_SINCE,
            )
        return EndTxnResponse(producer_id=producer.id, producer_epoch=producer.epoch)

    async def _init(self, request: InitProducerIdRequest) -> ProducerIdAndEpoch:
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise InvalidRequest("producer id and epoch require each other")
        if request.transactional_id is None:
            return ProducerIdAndEpoch(await self._coordinator.new_producer_id(), 0)
        check_transactional_id(request.transactional_id)
        claim = None if request.producer_id < 0 else ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        shard = await self._coordinator.ensure(request.transactional_id)
        return await shard.init(request.transactional_id, request.transaction_timeout_ms, claim)

    async def _add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, topics: list[AddPartitionsToTxnTopic], version: int
    ) -> list[AddPartitionsToTxnTopicResult]:
        """Add all of the partitions or none: if one cannot be added, the others are not attempted."""
        partitions: list[TopicPartition] = []
        rejected: dict[TopicPartition, int] = {}
        for topic in topics:
            for index in topic.partitions:
                try:
                    self._check_partition(topic.name, index, version)
                    partitions.append((topic.name, index))
                except HeadraceError as error:
                    rejected[topic.name, index] = error.code
        others = OperationNotAttempted.code if rejected else 0
        if not rejected:
            try:
                with _fencing_error(version, _FENCES_SINCE):
                    check_transactional_id(transactional_id)
                    shard = self._coordinator.of(transactional_id)
                    await shard.add_to_transaction(transactional_id, producer, partitions)
            except HeadraceError as error:
                others = error.code
        return [
            _add_result(topic.name, ((index, rejected.get((topic.name, index), others)) for index in topic.partitions))
            for topic in topics
        ]

    def _verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, topics: list[AddPartitionsToTxnTopic], version: int
    ) -> list[AddPartitionsToTxnTopicResult]:
        """Check each partition separately: whether it is part of the transaction."""

        def verified(topic: str, index: int) -> int:
            try:
                check_transactional_id(transactional_id)
                self._check_partition(topic, index, version)
                self._coordinator.of(transactional_id).verify(transactional_id, producer, (topic, index))
            except InvalidTransactionState as error:
                return TransactionAbortable.code if version >= _ABORTABLE_SINCE else error.code
            except HeadraceError as error:
                return error.code
            return 0

        return [
            _add_result(topic.name, ((index, verified(topic.name, index)) for index in topic.partitions))
            for topic in topics
        ]

    def _check_partition(self, topic: str, index: int, version: int) -> None:
        """Raise unless the partition exists, on any leader, and may be part of transactions. Newer versions of the
        request are sent by brokers, which commit offsets for their clients."""
        by_clients = topic.startswith(DELAYED_PREFIX) or (topic == CONSUMER_OFFSETS and version >= _BATCHED_SINCE)
        if is_internal(topic) and not by_clients:
            raise InvalidTopic(f"topic {topic} is internal: only brokers can write to it")
        self._catalogue.partition_record(topic, index)


def _add_result(topic: str, codes: Iterable[tuple[int, int]]) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code) for index, code in codes
        ],
    )


@contextmanager
def _fencing_error(version: int, fences_since: int) -> Iterator[None]:
    """Raise `InvalidProducerEpoch` in place of `ProducerFenced`, which older clients do not know."""
    try:
        yield
    except ProducerFenced as error:
        if version < fences_since:
            raise InvalidProducerEpoch(error.message) from error
        raise


class JointCommitRequests:
    """DescribeBundle and EndBundle. DescribeBundle succeeds only while `session_valid`: otherwise another broker may
    coordinate the bundle, and this broker does not know what was committed there."""

    def __init__(self, coordinator: TransactionCoordinator, session_valid: Callable[[], bool]) -> None:
        self._coordinator = coordinator
        self._session_valid = session_valid

    def handlers(self) -> list[RequestHandler[Any, Any]]:
        return [RequestHandler(apis.DESCRIBE_BUNDLE, self.describe), RequestHandler(apis.END_BUNDLE, self.end)]

    async def describe(self, request: DescribeBundleRequest, _context: RequestContext) -> DescribeBundleResponse:
        bundle = await self._of(request.bundle).describe_bundle(request.bundle)
        if not self._session_valid():
            raise CoordinatorNotAvailable("this broker may no longer be the coordinator; retry")
        if bundle is None:
            return DescribeBundleResponse()
        return DescribeBundleResponse(
            sequence=bundle.sequence,
            members=[
                BundleMember(member.transactional_id, member.producer_id, member.epoch) for member in bundle.members
            ],
            digest=bundle.digest,
        )

    async def end(self, request: EndBundleRequest, _context: RequestContext) -> EndBundleResponse:
        members = [
            JointCommitMember(member.transactional_id, member.producer_id, member.producer_epoch)
            for member in request.members
        ]
        shard = self._of(request.bundle)
        is_committed = await shard.end_bundle(
            request.bundle, request.sequence, members, is_commit=request.is_commit, digest=request.digest
        )
        last = shard.joint_commits.find(request.bundle)
        return EndBundleResponse(is_committed=is_committed, sequence=NO_SEQUENCE if last is None else last.sequence)

    def _of(self, bundle: str) -> TransactionShard:
        check_joint_commit_name(bundle)
        return self._coordinator.of(joint_commit_owner_id(bundle))
