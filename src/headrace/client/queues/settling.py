"""Saying what became of leased messages, at the brokers that lead their partitions.

Neighbours go out as one range; a range that is refused is tried again message by message, so that each hears for itself
what is wrong with it. What cannot be answered for a while (a leader has moved) is asked again. Then a message may be
refused because the first attempt has settled it and only its answer was lost: an ack that is refused so is looked at
before it is told. Of the others a refusal says no more than that the message is not this member's any more.
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
from headrace.client.queues.message_status import SETTLED, message_statuses
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.wire.messages.queues import (
    SettleItem,
    SettlePartition,
    SettlePartitionResponse,
    SettleRequest,
    SettleResponse,
    SettleTopic,
)

GAP, ACK, NACK, REJECT, EXTEND, RELEASE = range(6)

_ITEMS_MAX = 5000  # of one request; brokers take twice as many
_STATUSES_MAX = 1000  # that a broker tells at once


class FailedSettlement(NamedTuple):
    """A message that was not settled."""

    receipt: LeaseReceipt
    error: HeadraceError


class _SettleTarget(NamedTuple):
    """What can be settled by one part of a request: one partition, in one reign of its leader, for one member."""

    topic: str
    partition: int
    epoch: int
    member: str


class _PartitionSettlement(NamedTuple):
    """One such part, and whose items they are, in their order."""

    place: _SettleTarget
    items: list[SettleItem]
    runs: list[list[LeaseReceipt]]


class _BrokerSettlement(NamedTuple):
    """One request: what a member has to say to one broker."""

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
    """Settle all in the same way; those that were refused."""
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
    """Those of the refused that are not settled, or of which nobody can say so."""
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
    """The messages of one call that no broker has answered for yet."""

    def __init__(self, cluster: Cluster, subscription: str, how: SettleItem) -> None:
        self.refused: list[FailedSettlement] = []
        self.has_retried = False
        self._cluster = cluster
        self._subscription = subscription
        self._how = how
        self._parts: list[_PartitionSettlement] = []

    def add(self, receipts: Iterable[LeaseReceipt]) -> None:
        places: dict[tuple[str, int, int, str], list[LeaseReceipt]] = defaultdict(list)
        for receipt in receipts:
            (topic, partition, _), _, epoch, member = receipt
            places[topic, partition, epoch, member].append(receipt)
        for place, found in places.items():
            runs = receipt_runs(found)
            while some := list(islice(runs, _ITEMS_MAX)):
                self._add_receipt_runs(_SettleTarget(*place), some)

    def fail_all(self, error: HeadraceError) -> None:
        for part in self._parts:
            self._fail_part(part, error)

    async def settle_at_brokers(self) -> None:
        """One attempt, the brokers side by side; raises what is worth another one."""
        while self._parts:
            errands = await self._broker_settlements()
            failures: list[HeadraceError] = []
            if len(errands) == 1:
                await self._settle_at_broker(errands[0], failures)
            else:
                async with asyncio.TaskGroup() as group:
                    for settlement in errands:
                        group.create_task(self._settle_at_broker(settlement, failures))
            for failure in failures:
                self.has_retried = True
                raise failure

    async def _broker_settlements(self) -> list[_BrokerSettlement]:
        """What there is to ask, and whom. What can be asked of nobody is refused."""
        errands: list[_BrokerSettlement] = []
        latest: dict[tuple[int, str], _BrokerSettlement] = {}
        for part in [*self._parts]:
            place = part.place
            try:
                leader = (await self._cluster.partition(place.topic, place.partition)).leader
            except UnknownTopicOrPartition as error:
                self._parts.remove(part)
                self._fail_part(part, error)
                continue
            settlement = latest.get((leader, place.member))
            if settlement is None or sum(len(one.items) for one in settlement.parts) + len(part.items) > _ITEMS_MAX:
                settlement = latest[leader, place.member] = _BrokerSettlement(leader, place.member, [])
                errands.append(settlement)
            settlement.parts.append(part)
        return errands

    async def _settle_at_broker(self, settlement: _BrokerSettlement, failures: list[HeadraceError]) -> None:
        """Answers come in the order of the request; what is worth another attempt is added to the failures."""
        parts = settlement.parts
        topics = [
            SettleTopic(part.place.topic, [SettlePartition(part.place.partition, part.place.epoch, part.items)])
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
        for part, told in zip(parts, response.topics, strict=True):
            answer = told.partitions[0]
            if answer.error_code:
                self._handle_error(part, error_of_code(answer.error_code, answer.error_message), failures)
            else:
                self._accept_response(part, answer)

    def _handle_error(self, part: _PartitionSettlement, error: HeadraceError, failures: list[HeadraceError]) -> None:
        if error.retriable and not isinstance(error, UnknownTopicOrPartition):
            failures.append(error)
        else:
            self._parts.remove(part)
            self._fail_part(part, error)

    def _accept_response(self, part: _PartitionSettlement, answer: SettlePartitionResponse) -> None:
        self._parts.remove(part)
        singles: list[list[LeaseReceipt]] = []
        for one in answer.refused:
            run = part.runs[one.index]
            if len(run) == 1:
                self.refused.append(FailedSettlement(run[0], error_of_code(one.error_code, one.error_message)))
            else:
                singles += [[receipt] for receipt in run]
        if singles:
            self._add_receipt_runs(part.place, singles)

    def _add_receipt_runs(self, place: _SettleTarget, runs: list[list[LeaseReceipt]]) -> None:
        self._parts.append(_PartitionSettlement(place, [self._item(run) for run in runs], runs))

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
