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
from headrace.client.errors import raise_for, refusal
from headrace.client.leased import Receipt, joined
from headrace.client.message_status import SETTLED, message_statuses
from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.wire.messages.settle import (
    SettleItem,
    SettlePartition,
    SettlePartitionAnswer,
    SettleRequest,
    SettleResponse,
    SettleTopic,
)

GAP, ACK, NACK, REJECT, EXTEND = range(5)

_ITEMS_MAX = 5000  # of one request; brokers take twice as many
_STATUSES_MAX = 1000  # that a broker tells at once


class Refused(NamedTuple):
    """A message that was not settled."""

    receipt: Receipt
    error: HeadraceError


class _Place(NamedTuple):
    """What can be settled by one part of a request: one partition, in one reign of its leader, for one member."""

    topic: str
    partition: int
    epoch: int
    member: str


class _Part(NamedTuple):
    """One such part, and whose items they are, in their order."""

    place: _Place
    items: list[SettleItem]
    runs: list[list[Receipt]]


async def settle(
    cluster: Cluster,
    subscription: str,
    receipts: Iterable[Receipt],
    how: SettleItem,
    *,
    deadline_seconds: float | None = None,
) -> list[Refused]:
    """Settle all in the same way; those that were refused."""
    waiting = _Waiting(cluster, subscription, how)
    waiting.add(receipts)
    try:
        await cluster.persist(waiting.ask_all, deadline_seconds=deadline_seconds)
    except HeadraceError as error:
        waiting.refuse_all(error)
    if how.how == ACK and waiting.has_repeated and waiting.refused:
        return await _unsettled(cluster, subscription, waiting.refused)
    return waiting.refused


async def _unsettled(cluster: Cluster, subscription: str, refused: Sequence[Refused]) -> list[Refused]:
    """Those of the refused that are not settled, or of which nobody can say so."""
    by_target: dict[TopicPartition, list[Refused]] = defaultdict(list)
    for one in refused:
        by_target[TopicPartition(one.receipt.id.topic, one.receipt.id.partition)].append(one)
    left: list[Refused] = []
    for target, some in by_target.items():
        settled: set[int] = set()
        with suppress(HeadraceError):
            for at in range(0, len(some), _STATUSES_MAX):
                offsets = [one.receipt.id.offset for one in some[at : at + _STATUSES_MAX]]
                statuses = await message_statuses(cluster, target, offsets, [subscription])
                settled |= {status.offset for status in statuses if status.state == SETTLED}
        left += [one for one in some if one.receipt.id.offset not in settled]
    return left


class _Waiting:
    """The messages of one call that no broker has answered for yet."""

    def __init__(self, cluster: Cluster, subscription: str, how: SettleItem) -> None:
        self.refused: list[Refused] = []
        self.has_repeated = False
        self._cluster = cluster
        self._subscription = subscription
        self._how = how
        self._parts: list[_Part] = []

    def add(self, receipts: Iterable[Receipt]) -> None:
        places: dict[_Place, list[Receipt]] = defaultdict(list)
        for receipt in receipts:
            place = _Place(receipt.id.topic, receipt.id.partition, receipt.epoch, receipt.member)
            places[place].append(receipt)
        for place, found in places.items():
            runs = joined(found)
            while some := list(islice(runs, _ITEMS_MAX)):
                self._add_runs(place, some)

    def refuse_all(self, error: HeadraceError) -> None:
        for part in self._parts:
            self._refuse(part, error)

    async def ask_all(self) -> None:
        """One attempt, the brokers side by side; raises what is worth another one."""
        while self._parts:
            by_leader: dict[tuple[int, str], list[_Part]] = defaultdict(list)
            for part in self._parts:
                leader = (await self._cluster.partition(part.place.topic, part.place.partition)).leader
                by_leader[leader, part.place.member].append(part)
            failures: list[HeadraceError] = []

            async def ask(node_id: int, parts: Sequence[_Part], failures: list[HeadraceError] = failures) -> None:
                for part in parts:
                    try:
                        await self._ask(node_id, part)
                    except HeadraceError as error:
                        failures.append(error)

            async with asyncio.TaskGroup() as group:
                for (node_id, _), parts in by_leader.items():
                    group.create_task(ask(node_id, parts))
            for failure in failures:
                self.has_repeated = True
                raise failure

    async def _ask(self, node_id: int, part: _Part) -> None:
        place = part.place
        asked = SettlePartition(place.partition, place.epoch, part.items)
        request = SettleRequest(self._subscription, place.member, [SettleTopic(place.topic, [asked])])
        try:
            response: SettleResponse = await self._cluster.call(request, node_id=node_id)
            raise_for(response.error_code, response.error_message)
            answer: SettlePartitionAnswer = response.topics[0].partitions[0]
            raise_for(answer.error_code, answer.error_message)
        except HeadraceError as error:
            if error.retriable:
                raise
            self._parts.remove(part)
            self._refuse(part, error)
            return
        self._parts.remove(part)
        singles: list[list[Receipt]] = []
        for one in answer.refused:
            run = part.runs[one.index]
            if len(run) == 1:
                self.refused.append(Refused(run[0], refusal(one.error_code, one.error_message)))
            else:
                singles += [[receipt] for receipt in run]
        if singles:
            self._add_runs(place, singles)

    def _add_runs(self, place: _Place, runs: list[list[Receipt]]) -> None:
        self._parts.append(_Part(place, [self._item(run) for run in runs], runs))

    def _item(self, run: Sequence[Receipt]) -> SettleItem:
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

    def _refuse(self, part: _Part, error: HeadraceError) -> None:
        self.refused += [Refused(receipt, error) for run in part.runs for receipt in run]
