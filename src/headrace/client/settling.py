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
from headrace.model.errors import HeadraceError, UnknownTopicOrPartition
from headrace.wire.messages.settle import (
    SettleItem,
    SettlePartition,
    SettlePartitionAnswer,
    SettleRequest,
    SettleResponse,
    SettleTopic,
)

GAP, ACK, NACK, REJECT, EXTEND, RELEASE = range(6)

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


class _Errand(NamedTuple):
    """One request: what a member has to say to one broker."""

    node_id: int
    member: str
    parts: list[_Part]


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
        places: dict[tuple[str, int, int, str], list[Receipt]] = defaultdict(list)
        for receipt in receipts:
            (topic, partition, _), _, epoch, member = receipt
            places[topic, partition, epoch, member].append(receipt)
        for place, found in places.items():
            runs = joined(found)
            while some := list(islice(runs, _ITEMS_MAX)):
                self._add_runs(_Place(*place), some)

    def refuse_all(self, error: HeadraceError) -> None:
        for part in self._parts:
            self._refuse(part, error)

    async def ask_all(self) -> None:
        """One attempt, the brokers side by side; raises what is worth another one."""
        while self._parts:
            errands = await self._errands()
            failures: list[HeadraceError] = []
            if len(errands) == 1:
                await self._ask(errands[0], failures)
            else:
                async with asyncio.TaskGroup() as group:
                    for errand in errands:
                        group.create_task(self._ask(errand, failures))
            for failure in failures:
                self.has_repeated = True
                raise failure

    async def _errands(self) -> list[_Errand]:
        """What there is to ask, and whom. What can be asked of nobody is refused."""
        errands: list[_Errand] = []
        latest: dict[tuple[int, str], _Errand] = {}
        for part in [*self._parts]:
            place = part.place
            try:
                leader = (await self._cluster.partition(place.topic, place.partition)).leader
            except UnknownTopicOrPartition as error:
                self._parts.remove(part)
                self._refuse(part, error)
                continue
            errand = latest.get((leader, place.member))
            if errand is None or sum(len(one.items) for one in errand.parts) + len(part.items) > _ITEMS_MAX:
                errand = latest[leader, place.member] = _Errand(leader, place.member, [])
                errands.append(errand)
            errand.parts.append(part)
        return errands

    async def _ask(self, errand: _Errand, failures: list[HeadraceError]) -> None:
        """Answers come in the order of the request; what is worth another attempt is added to the failures."""
        parts = errand.parts
        topics = [
            SettleTopic(part.place.topic, [SettlePartition(part.place.partition, part.place.epoch, part.items)])
            for part in parts
        ]
        try:
            response: SettleResponse = await self._cluster.call(
                SettleRequest(self._subscription, errand.member, topics), node_id=errand.node_id
            )
            raise_for(response.error_code, response.error_message)
        except HeadraceError as error:
            for part in parts:
                self._fail(part, error, failures)
            return
        for part, told in zip(parts, response.topics, strict=True):
            answer = told.partitions[0]
            if answer.error_code:
                self._fail(part, refusal(answer.error_code, answer.error_message), failures)
            else:
                self._take(part, answer)

    def _fail(self, part: _Part, error: HeadraceError, failures: list[HeadraceError]) -> None:
        if error.retriable and not isinstance(error, UnknownTopicOrPartition):
            failures.append(error)
        else:
            self._parts.remove(part)
            self._refuse(part, error)

    def _take(self, part: _Part, answer: SettlePartitionAnswer) -> None:
        self._parts.remove(part)
        singles: list[list[Receipt]] = []
        for one in answer.refused:
            run = part.runs[one.index]
            if len(run) == 1:
                self.refused.append(Refused(run[0], refusal(one.error_code, one.error_message)))
            else:
                singles += [[receipt] for receipt in run]
        if singles:
            self._add_runs(part.place, singles)

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
