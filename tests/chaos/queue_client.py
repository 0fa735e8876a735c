"""The process of one client of the queue, on its own host, until SIGTERM.

    python -m tests.chaos.queue_client ROLE NAME BOOTSTRAP RATE

A publisher sends messages, some of them delayed, and cancels some of these. Workers lease with the SDK and settle by
the kind of message: most are acked, poison is rejected, stubborn messages are nacked until they become dead letters. A
straggler lets its leases expire and acks afterwards. Each restarts its work every few seconds. The process prints its
operations and what it received, one JSON array per line, in milliseconds of the wall clock, which brokers use for
leases and delays:

    ["publish", began, value, due or null]      ["published", ended, value]
    ["cancel", began, value]                    ["cancelled", ended, value]
    ["lease", number, value, id, attempt, granted, until]
    ["settle", number, began, how, delay or null]       how: ack, nack, reject, or late: an ack after the lease
    ["settled", number, ended]                  ["refused", number, at, error]
    ["error", at, text]                         ["end", at]

A settle without either may have taken effect. `number` counts the deliveries of this client.
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
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import HeadraceError, InvalidRecordState
from headrace.wire.messages.queues import SettleItem, SettlePartition, SettleRequest, SettleResponse, SettleTopic

SUBSCRIPTION = "workers"
DELIVERIES_MAX = 8
"""The delivery limit. A message that is neither poison nor stubborn stays far below it."""
ORDINARY, POISON, STUBBORN = "ordinary", "poison", "stubborn"
ACK_HOW, NACK, REJECT, LATE = "ack", "nack", "reject", "late"
KEYS = 24
DELAY_SECONDS_MAX = 8.0
LEASE_SECONDS, SHORT_LEASE_SECONDS = 2.0, 1.0
LATE_SECONDS = (0.02, 0.3)
"""How long after the end of a lease a straggler acks: brokers may round milliseconds differently."""
PATIENT_ATTEMPTS = 2
"""How many deliveries of an ordinary message are nacked or abandoned on purpose."""
PUBLISH_SECONDS = 120.0
"""Longer than any fault."""
IN_FLIGHT_MAX = 500
SHIFT_SECONDS = 12.0
SETTINGS = ClientSettings(dial_timeout_seconds=2.0, request_timeout_seconds=5.0, deadline_seconds=20.0)
"""An isolated host sends no response at all: by default a client waits half a minute before it tries another."""


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
    """Publishes unique values at a fixed rate. One in five is delayed, and one in four of these is cancelled."""

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
        with suppress(HeadraceError):  # it may be due already; without a response the result is unknown
            await self._client.cancel(receipt)
            emit("cancelled", now_ms(), value)


class Verdict(NamedTuple):
    how: str
    delay_ms: int | None = None


class Shifts:
    """Works in shifts, each with new connections and another member name."""

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
        """Work for one shift."""
        raise NotImplementedError

    def emit_lease(self, message: LeasedMessage, lease_seconds: float) -> int:
        """Print the lease; return the number of the delivery."""
        number, self._number = self._number, self._number + 1
        value, until = (message.value or b"").decode(), message.leased_until_ms
        emit("lease", number, value, str(message.id), message.attempt, until - int(lease_seconds * 1000), until)
        return number

    def verdict(self, message: LeasedMessage) -> Verdict:
        """Decide how to settle a message by its kind; some ordinary ones are nacked at first."""
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
        number = self.emit_lease(message.leased, LEASE_SECONDS)
        verdict = self.verdict(message.leased)
        if self._chance.random() < 0.01:
            await asyncio.sleep(1.5 * LEASE_SECONDS)  # the SDK extends the lease meanwhile
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
    """Works without the SDK, which would extend the leases."""

    async def work(self, cluster: Cluster) -> None:
        ends = time.monotonic() + SHIFT_SECONDS
        async with cluster, Subscription(cluster, JOBS, SUBSCRIPTION, SHORT_LEASE_SECONDS) as subscription:
            while not self.is_stopped and time.monotonic() < ends:
                for message in await subscription.lease(2, wait_seconds=1.0):
                    number = self.emit_lease(message, SHORT_LEASE_SECONDS)
                    if message.attempt <= PATIENT_ATTEMPTS:
                        await self._ack_late(cluster, number, message)
                    else:
                        await self._settle(subscription, number, message)
                sys.stdout.flush()

    async def _ack_late(self, cluster: Cluster, number: int, message: LeasedMessage) -> None:
        """Ack in one attempt: the client's retries would also succeed if another member has settled the message
        meanwhile."""
        is_over = message.leased_until_ms / 1000 + self._chance.uniform(*LATE_SECONDS)
        await asyncio.sleep(max(0.0, is_over - time.time()))
        (topic, partition, offset), attempt, epoch, member = message.receipt
        item = SettleItem(first=offset, last=offset, attempt=attempt, how=ACK)
        request = SettleRequest(SUBSCRIPTION, member, [SettleTopic(topic, [SettlePartition(partition, epoch, [item])])])
        emit("settle", number, now_ms(), LATE, None)
        try:
            leader = (await cluster.partition(topic, partition)).leader
            response: SettleResponse = await cluster.call(request, node_id=leader)
            raise_for_code(response.error_code, response.error_message)
            (settled,) = response.topics[0].partitions
            raise_for_code(settled.error_code, settled.error_message)
            for refused in settled.refused:
                raise_for_code(refused.error_code, refused.error_message)
            emit("settled", number, now_ms())
        except InvalidRecordState as error:
            emit("refused", number, now_ms(), error.message)
        except HeadraceError as error:
            emit("error", now_ms(), repr(error))

    async def _settle(self, subscription: Subscription, number: int, message: LeasedMessage) -> None:
        verdict = self.verdict(message)
        emit("settle", number, now_ms(), *verdict)
        if verdict.how == ACK_HOW:
            failed = await subscription.ack([message])
        elif verdict.how == NACK:
            failed = await subscription.nack([message], delay_seconds=(verdict.delay_ms or 0) / 1000)
        else:
            failed = await subscription.reject([message], "poison")
        if not failed:
            emit("settled", number, now_ms())
        for _, error in failed:
            if error.retriable:
                emit("error", now_ms(), repr(error))
            else:
                emit("refused", number, now_ms(), error.message)


if __name__ == "__main__":
    main(*sys.argv[1:])
