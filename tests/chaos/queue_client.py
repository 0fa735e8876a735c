"""One client of the queue, in a process of its own, on a host of its own, until SIGTERM.

    python -m tests.chaos.queue_client ROLE NAME BOOTSTRAP RATE

A publisher writes, also what is due later, and cancels some of that. Workers take, through the SDK, and settle as the
message wants it: most are acked, poison is rejected, what is stubborn is given back until it dies. Stragglers let their
leases run out and ack then. Each takes up its work anew every few seconds. It prints what it did and saw, one JSON
array to a line, in milliseconds of the wall clock, by which the brokers lease and delay:

    ["publish", began, value, due or null]      ["published", ended, value]
    ["cancel", began, value]                    ["cancelled", ended, value]
    ["lease", number, value, id, attempt, granted, until]
    ["settle", number, began, how, delay or null]       how: ack, nack, reject, or late: an ack after the lease
    ["settled", number, ended]                  ["refused", number, at, error]
    ["error", at, text]                         ["end", at]

A settle that is followed by neither may have taken effect. `number` counts the deliveries of this client.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from tests.chaos.client import emit
from tests.chaos.names import JOBS

from headrace import AsyncClient, AsyncMessage, LeaseLost, Receipt
from headrace.client.cluster import ClientSettings, Cluster, connect
from headrace.client.errors import raise_for_code
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.settling import ACK
from headrace.client.queues.subscription import LeasingRules, Subscription
from headrace.model.errors import HeadraceError, InvalidRecordState
from headrace.wire.messages.queues import SettleItem, SettlePartition, SettleRequest, SettleResponse, SettleTopic

SUBSCRIPTION = "workers"
DELIVERIES_MAX = 8
"""Then a message dies. One that is neither poison nor stubborn comes nowhere near."""
ORDINARY, POISON, STUBBORN = "ordinary", "poison", "stubborn"
ACK_HOW, NACK, REJECT, LATE = "ack", "nack", "reject", "late"
KEYS = 24
DELAY_SECONDS_MAX = 8.0
LEASE_SECONDS, SHORT_LEASE_SECONDS = 2.0, 1.0
LATE_SECONDS = (0.02, 0.3)
"""How late a straggler acks: the brokers' milliseconds may be rounded in another way than ours."""
PATIENT_ATTEMPTS = 2
"""Only so many deliveries of an ordinary message are wasted on purpose."""
PUBLISH_SECONDS = 120.0
"""Longer than any fault lasts."""
IN_FLIGHT_MAX = 500
SHIFT_SECONDS = 12.0
SETTINGS = ClientSettings(dial_timeout_seconds=2.0, request_timeout_seconds=5.0, deadline_seconds=20.0)
"""A host that is cut off answers nothing at all: by default a client waits half a minute until it asks another."""


def main(role: str, name: str, bootstrap: str, rate: str) -> None:
    asyncio.run(_main(role, name, bootstrap, float(rate)))
    emit("end", now_ms())
    sys.stdout.flush()


async def _main(role: str, name: str, bootstrap: str, rate: float) -> None:
    client: Publisher | Shifts
    if role == "publisher":
        client = Publisher(name, bootstrap, rate)
    else:
        client = (Worker if role == "worker" else Straggler)(name, bootstrap)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stop)
    await client.run()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Publisher:
    """Unique values, so many in a second. One message in five is due later, and one in four of these is cancelled."""

    def __init__(self, name: str, bootstrap: str, rate: float) -> None:
        self._name, self._rate, self._chance = name, rate, random.Random(name)
        self._client = AsyncClient(cluster=connect(bootstrap, SETTINGS), create_topics=False, timeout=PUBLISH_SECONDS)
        self._is_stopped = False
        self._in_flight = 0

    def stop(self) -> None:
        self._is_stopped = True

    async def run(self) -> None:
        number = 0
        async with self._client, asyncio.TaskGroup() as tasks:
            while not self._is_stopped:
                if self._in_flight < IN_FLIGHT_MAX:
                    self._in_flight += 1
                    tasks.create_task(self._publish(number))
                    number += 1
                sys.stdout.flush()
                await asyncio.sleep(1 / self._rate)

    async def _publish(self, number: int) -> None:
        kind = POISON if number % 20 == 7 else STUBBORN if number % 50 == 11 else ORDINARY
        value = f"{kind} {self._name}-{number}"
        began, is_delayed = now_ms(), number % 5 == 2
        due = began + int(self._chance.uniform(0.0, DELAY_SECONDS_MAX) * 1000) if is_delayed else None
        emit("publish", began, value, due)
        try:
            receipt = await self._client.publish(
                JOBS,
                value.encode(),
                key=str(number % KEYS),
                deliver_at=None if due is None else datetime.fromtimestamp(due / 1000, UTC),
            )
            emit("published", now_ms(), value)
            if is_delayed and number % 20 == 12:
                await self._cancel(receipt, value)
        except HeadraceError as error:
            emit("error", now_ms(), f"{value!r} could not be published: {error!r}")
        finally:
            self._in_flight -= 1

    async def _cancel(self, receipt: Receipt, value: str) -> None:
        emit("cancel", now_ms(), value)
        with suppress(HeadraceError):  # it may be due already; and whoever is not answered knows nothing
            await self._client.cancel(receipt)
            emit("cancelled", now_ms(), value)


class Verdict(NamedTuple):
    how: str
    delay_ms: int | None = None


class Shifts:
    """Works in shifts, each with connections and a member's name of its own."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self._bootstrap, self._chance = bootstrap, random.Random(name)
        self._number = 0
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True

    async def run(self) -> None:
        while not self.is_stopped:
            try:
                await self.work(connect(self._bootstrap, SETTINGS))
            except* HeadraceError as errors:
                emit("error", now_ms(), repr(errors.exceptions))
            sys.stdout.flush()

    async def work(self, cluster: Cluster) -> None:
        """One shift."""
        raise NotImplementedError

    def tell_lease(self, message: LeasedMessage, lease_seconds: float) -> int:
        """Returns the number of the delivery."""
        number, self._number = self._number, self._number + 1
        value, until = (message.value or b"").decode(), message.leased_until_ms
        emit("lease", number, value, str(message.id), message.attempt, until - int(lease_seconds * 1000), until)
        return number

    def verdict(self, message: LeasedMessage) -> Verdict:
        """What the message wants; some ordinary ones are given back for a while at first."""
        kind = (message.value or b"").decode().split()[0]
        if kind == POISON:
            return Verdict(REJECT)
        if kind == STUBBORN:
            return Verdict(NACK, 0)
        if message.attempt <= PATIENT_ATTEMPTS and self._chance.random() < 0.1:
            return Verdict(NACK, int(self._chance.uniform(0.0, 1.5) * 1000))
        return Verdict(ACK_HOW)


class Worker(Shifts):
    _client: AsyncClient | None = None

    def stop(self) -> None:
        super().stop()
        if self._client is not None:
            self._client.stop()

    async def work(self, cluster: Cluster) -> None:
        async with AsyncClient(cluster=cluster, create_topics=False) as self._client:
            end = asyncio.get_running_loop().call_later(SHIFT_SECONDS, self._client.stop)
            try:
                await self._client.work(JOBS, SUBSCRIPTION, self._handle, concurrency=8, lease=LEASE_SECONDS)
            finally:
                end.cancel()

    async def _handle(self, message: AsyncMessage) -> None:
        number = self.tell_lease(message.leased, LEASE_SECONDS)
        verdict = self.verdict(message.leased)
        if self._chance.random() < 0.01:
            await asyncio.sleep(1.5 * LEASE_SECONDS)  # the SDK extends it meanwhile
        emit("settle", number, now_ms(), *verdict)
        try:
            if verdict.how == ACK_HOW:
                await message.ack()
            elif verdict.how == NACK:
                await message.nack((verdict.delay_ms or 0) / 1000)
            else:
                await message.reject("poison")
            emit("settled", number, now_ms())
        except LeaseLost as lost:
            emit("refused", number, now_ms(), lost.message)
        except HeadraceError as error:
            emit("error", now_ms(), repr(error))
        sys.stdout.flush()


class Straggler(Shifts):
    """Without the SDK, which would extend the leases."""

    async def work(self, cluster: Cluster) -> None:
        ends = time.monotonic() + SHIFT_SECONDS
        rules = LeasingRules(lease_seconds=SHORT_LEASE_SECONDS)
        async with cluster, Subscription(cluster, JOBS, SUBSCRIPTION, rules) as subscription:
            while not self.is_stopped and time.monotonic() < ends:
                for message in await subscription.lease(2, wait_seconds=1.0):
                    number = self.tell_lease(message, SHORT_LEASE_SECONDS)
                    if message.attempt <= PATIENT_ATTEMPTS:
                        await self._ack_late(cluster, number, message)
                    else:
                        await self._settle(subscription, number, message)
                sys.stdout.flush()

    async def _ack_late(self, cluster: Cluster, number: int, message: LeasedMessage) -> None:
        """One attempt: the client's own way would also take it for done if somebody else has settled it meanwhile."""
        is_over = message.leased_until_ms / 1000 + self._chance.uniform(*LATE_SECONDS)
        await asyncio.sleep(max(0.0, is_over - time.time()))
        (topic, partition, offset), attempt, epoch, member = message.receipt
        item = SettleItem(first=offset, last=offset, attempt=attempt, how=ACK)
        request = SettleRequest(SUBSCRIPTION, member, [SettleTopic(topic, [SettlePartition(partition, epoch, [item])])])
        emit("settle", number, now_ms(), LATE, None)
        try:
            leader = (await cluster.partition(topic, partition)).leader
            answer: SettleResponse = await cluster.call(request, node_id=leader)
            raise_for_code(answer.error_code, answer.error_message)
            (told,) = answer.topics[0].partitions
            raise_for_code(told.error_code, told.error_message)
            for refused in told.refused:
                raise_for_code(refused.error_code, refused.error_message)
            emit("settled", number, now_ms())
        except InvalidRecordState as refusal:
            emit("refused", number, now_ms(), refusal.message)
        except HeadraceError as error:
            emit("error", now_ms(), repr(error))

    async def _settle(self, subscription: Subscription, number: int, message: LeasedMessage) -> None:
        verdict = self.verdict(message)
        emit("settle", number, now_ms(), *verdict)
        if verdict.how == ACK_HOW:
            refused = await subscription.ack([message])
        elif verdict.how == NACK:
            refused = await subscription.nack([message], delay_seconds=(verdict.delay_ms or 0) / 1000)
        else:
            refused = await subscription.reject([message], "poison")
        if not refused:
            emit("settled", number, now_ms())
        for _, error in refused:
            if error.retriable:
                emit("error", now_ms(), repr(error))
            else:
                emit("refused", number, now_ms(), error.message)


if __name__ == "__main__":
    main(*sys.argv[1:])
