"""Settle leased messages at the leaders of their partitions, and query their delivery state.

- Neighbouring messages travel as one range. If the broker rejects a range, it is retried message by message, so that
  each rejected message is reported with its own error.
- A retriable error (the leader has moved) is retried. Then an ack may be rejected because an earlier attempt settled
  the message and only its response was lost, so `settle` queries the state of such messages before it reports them.
- `AckBatcher` combines acks: those that are requested while others of the same partition are in flight leave together
  as soon as these are answered. An ack that finds none in flight leaves at once, so many workers that ack one message
  each cost little more than one that acks many. A partition whose leader is unreachable delays no other partition.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.client.queues.leased_messages import LeaseReceipt, receipt_runs
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.runtime.tasks import Supervisor
from headrace.wire.messages.queues import (
    MessageStatusRequest,
    MessageStatusResponse,
    SettleItem,
    SettlePartition,
    SettlePartitionResponse,
    SettleRequest,
    SettleResponse,
    SettleTopic,
    SubscriptionStatus,
)

SETTLED = "settled"


async def message_statuses(
    cluster: Cluster,
    target: TopicPartition,
    offsets: Sequence[int],
    names: Sequence[str] | None = None,
    *,
    with_history: bool = False,
) -> Sequence[SubscriptionStatus]:
    """For each offset and each of these subscriptions, or all. With history: also how and when, as far as known."""
    request = message_status_request(target, offsets, names, with_history=with_history)
    response: MessageStatusResponse = await cluster.call_until_success(request, target)
    return response.statuses


def message_status_request(
    target: TopicPartition, offsets: Sequence[int], names: Sequence[str] | None, *, with_history: bool = False
) -> MessageStatusRequest:
    return MessageStatusRequest(
        topic=target.topic,
        partition_index=target.partition,
        offsets=[*offsets],
        subscriptions=None if names is None else [*names],
        with_history=with_history,
    )


GAP, ACK, NACK, REJECT, EXTEND, RELEASE = range(6)

_ITEMS_MAX = 5000  # of one request; brokers take twice as many
_STATUSES_MAX = 1000  # that a broker tells at once


class FailedSettlement(NamedTuple):
    receipt: LeaseReceipt
    error: HeadraceError


class _SettleTarget(NamedTuple):
    """What one part of a request can settle: leases of one member, by one leader epoch of one partition."""

    topic: str
    partition: int
    epoch: int
    member: str


class _PartitionSettlement(NamedTuple):
    """One part of a request; `runs` are the receipts of its items, in the same order."""

    target: _SettleTarget
    items: list[SettleItem]
    runs: list[list[LeaseReceipt]]


class _BrokerSettlement(NamedTuple):
    node_id: int
    member: str
    parts: list[_PartitionSettlement]


async def settle(
    cluster: Cluster,
    subscription: str,
    receipts: Iterable[LeaseReceipt],
    how: SettleItem,
    *,
    deadline_seconds: float | None = None,
) -> list[FailedSettlement]:
    """Settle all messages in the same way; returns those that were not settled."""
    waiting = _PendingSettlements(cluster, subscription, how)
    waiting.add(receipts)
    try:
        await cluster.call_with_retries(waiting.settle_at_brokers, deadline_seconds=deadline_seconds)
    except HeadraceError as error:
        waiting.fail_all(error)
    if how.how == ACK and waiting.has_retried and waiting.refused:
        return await _still_unsettled(cluster, subscription, waiting.refused)
    return waiting.refused


async def _still_unsettled(
    cluster: Cluster, subscription: str, refused: Sequence[FailedSettlement]
) -> list[FailedSettlement]:
    """The rejected messages that are not settled, or whose state cannot be queried."""
    by_target: dict[TopicPartition, list[FailedSettlement]] = defaultdict(list)
    for one in refused:
        by_target[TopicPartition(one.receipt.id.topic, one.receipt.id.partition)].append(one)
    left: list[FailedSettlement] = []
    for target, some in by_target.items():
        settled: set[int] = set()
        with suppress(HeadraceError):
            for at in range(0, len(some), _STATUSES_MAX):
                offsets = [one.receipt.id.offset for one in some[at : at + _STATUSES_MAX]]
                statuses = await message_statuses(cluster, target, offsets, [subscription])
                settled |= {status.offset for status in statuses if status.state == SETTLED}
        left += [one for one in some if one.receipt.id.offset not in settled]
    return left


class _PendingSettlements:
    """The messages of one `settle` call for which there is no response yet."""

    def __init__(self, cluster: Cluster, subscription: str, how: SettleItem) -> None:
        self.refused: list[FailedSettlement] = []
        self.has_retried = False
        self._cluster = cluster
        self._subscription = subscription
        self._how = how
        self._parts: list[_PartitionSettlement] = []

    def add(self, receipts: Iterable[LeaseReceipt]) -> None:
        by_target: dict[_SettleTarget, list[LeaseReceipt]] = defaultdict(list)
        for receipt in receipts:
            (topic, partition, _), _, epoch, member = receipt
            by_target[_SettleTarget(topic, partition, epoch, member)].append(receipt)
        for target, found in by_target.items():
            runs = receipt_runs(found)
            while some := list(islice(runs, _ITEMS_MAX)):
                self._add_receipt_runs(target, some)

    def fail_all(self, error: HeadraceError) -> None:
        for part in self._parts:
            self._fail_part(part, error)

    async def settle_at_brokers(self) -> None:
        """One attempt, at all brokers concurrently; raises the first error that is worth another attempt."""
        while self._parts:
            settlements = await self._broker_settlements()
            failures: list[HeadraceError] = []
            if len(settlements) == 1:
                await self._settle_at_broker(settlements[0], failures)
            else:
                async with asyncio.TaskGroup() as group:
                    for settlement in settlements:
                        group.create_task(self._settle_at_broker(settlement, failures))
            for failure in failures:
                self.has_retried = True
                raise failure

    async def _broker_settlements(self) -> list[_BrokerSettlement]:
        """The requests to send. Messages of partitions that do not exist fail."""
        settlements: list[_BrokerSettlement] = []
        latest: dict[tuple[int, str], _BrokerSettlement] = {}
        for part in [*self._parts]:
            target = part.target
            try:
                leader = (await self._cluster.partition(target.topic, target.partition)).leader
            except UnknownTopicOrPartition as error:
                self._parts.remove(part)
                self._fail_part(part, error)
                continue
            settlement = latest.get((leader, target.member))
            if settlement is None or sum(len(one.items) for one in settlement.parts) + len(part.items) > _ITEMS_MAX:
                settlement = latest[leader, target.member] = _BrokerSettlement(leader, target.member, [])
                settlements.append(settlement)
            settlement.parts.append(part)
        return settlements

    async def _settle_at_broker(self, settlement: _BrokerSettlement, failures: list[HeadraceError]) -> None:
        """Results come in the order of the request; errors that are worth another attempt are added to `failures`."""
        parts = settlement.parts
        topics = [
            SettleTopic(part.target.topic, [SettlePartition(part.target.partition, part.target.epoch, part.items)])
            for part in parts
        ]
        try:
            response: SettleResponse = await self._cluster.call(
                SettleRequest(self._subscription, settlement.member, topics), node_id=settlement.node_id
            )
            raise_for_code(response.error_code, response.error_message)
        except HeadraceError as error:
            for part in parts:
                self._handle_error(part, error, failures)
            return
        for part, topic in zip(parts, response.topics, strict=True):
            settled = topic.partitions[0]
            if settled.error_code:
                self._handle_error(part, error_of_code(settled.error_code, settled.error_message), failures)
            else:
                self._accept_response(part, settled)

    def _handle_error(self, part: _PartitionSettlement, error: HeadraceError, failures: list[HeadraceError]) -> None:
        if error.retriable and not isinstance(error, UnknownTopicOrPartition):
            failures.append(error)
        else:
            self._parts.remove(part)
            self._fail_part(part, error)

    def _accept_response(self, part: _PartitionSettlement, response: SettlePartitionResponse) -> None:
        self._parts.remove(part)
        singles: list[list[LeaseReceipt]] = []
        for one in response.refused:
            run = part.runs[one.index]
            if len(run) == 1:
                self.refused.append(FailedSettlement(run[0], error_of_code(one.error_code, one.error_message)))
            else:
                singles += [[receipt] for receipt in run]
        if singles:
            self._add_receipt_runs(part.target, singles)

    def _add_receipt_runs(self, target: _SettleTarget, runs: list[list[LeaseReceipt]]) -> None:
        self._parts.append(_PartitionSettlement(target, [self._item(run) for run in runs], runs))

    def _item(self, run: Sequence[LeaseReceipt]) -> SettleItem:
        how = self._how
        return SettleItem(
            first=run[0].id.offset,
            last=run[-1].id.offset,
            attempt=run[0].attempt,
            how=how.how,
            delay_ms=how.delay_ms,
            lease_ms=how.lease_ms,
            reason=how.reason,
        )

    def _fail_part(self, part: _PartitionSettlement, error: HeadraceError) -> None:
        self.refused += [FailedSettlement(receipt, error) for run in part.runs for receipt in run]


class _AckBatch(NamedTuple):
    """The acks of one request, and the future of its failed ones."""

    receipts: dict[LeaseReceipt, None]  # each once, also if two ask for it
    refused: asyncio.Future[list[FailedSettlement]]


class AckBatcher:
    def __init__(self, cluster: Cluster, subscription: str) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._next_batches: dict[TopicPartition, _AckBatch] = {}  # what leaves next
        self._partitions_in_flight: set[TopicPartition] = set()
        self._tasks = Supervisor()  # never stopped: who acks is answered also when its member has gone

    async def ack(self, receipts: Iterable[LeaseReceipt]) -> list[FailedSettlement]:
        """Ack messages, and wait for it; returns those that were not acked."""
        by_partition: dict[TopicPartition, list[LeaseReceipt]] = defaultdict(list)
        for receipt in receipts:
            by_partition[TopicPartition(receipt.id.topic, receipt.id.partition)].append(receipt)
        joined = [(self._join_batch(target, some), set(some)) for target, some in by_partition.items()]
        refused: list[FailedSettlement] = []
        for group, requested in joined:
            refused += [one for one in await asyncio.shield(group.refused) if one.receipt in requested]
        return refused

    def _join_batch(self, target: TopicPartition, receipts: Iterable[LeaseReceipt]) -> _AckBatch:
        group = self._next_batches.get(target)
        if group is None:
            group = self._next_batches[target] = _AckBatch({}, asyncio.get_running_loop().create_future())
        group.receipts.update(dict.fromkeys(receipts))
        if target not in self._partitions_in_flight:
            self._partitions_in_flight.add(target)
            self._tasks.spawn(self._send(target), f"acks of {target}")
        return group

    async def _send(self, target: TopicPartition) -> None:
        group = None
        try:
            while (group := self._next_batches.pop(target, None)) is not None:
                try:
                    refused = await settle(self._cluster, self._subscription, group.receipts, SettleItem(how=ACK))
                except Exception as error:  # whatever it is, it belongs to those who wait
                    group.refused.set_exception(error)
                else:
                    group.refused.set_result(refused)
        finally:
            self._partitions_in_flight.discard(target)
            for unanswered in (group, self._next_batches.pop(target, None)):
                if unanswered is not None:
                    unanswered.refused.cancel()
