"""Acks that are asked for while others of their partition are on their way leave together, when those are answered.

Nobody waits for company: an ack that finds none on its way leaves at once. So many workers that ack one message each
cost little more than one that acks many, and a partition whose leader cannot be reached holds up no other. Whoever
stops waiting for the answer takes nothing back: the ack may have left, with those of others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.client.queues.leased_messages import LeaseReceipt
from headrace.client.queues.settling import ACK, FailedSettlement, settle
from headrace.runtime.tasks import Supervisor
from headrace.wire.messages.queues import SettleItem


class _AckBatch(NamedTuple):
    """What leaves together, and what was refused of it."""

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
        """Return when they are settled; those that were refused."""
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
