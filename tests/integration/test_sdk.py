"""The SDK with a real broker that is killed: no message is lost, and acked messages are not redelivered."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until

from headrace import AsyncClient, AsyncMessage, Client, HeadraceError, Message
from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.model.errors import ProducerFenced

ROOT = Path(__file__).parents[2]
LEASE = "share.record.lock.duration.ms"
KILLS = 3


async def until(condition: Any, what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


async def test_publishing_survives_a_broker_kill_without_loss_or_duplicates(
    broker: BrokerProcess,
) -> None:
    receipts: list[int] = []
    is_over = False

    async def publish(client: AsyncClient, worker: int) -> None:
        number = 0
        while not is_over:
            await client.publish("orders", [worker, number])
            receipts.append(worker)
            number += 1

    async with AsyncClient(broker.address) as client:
        async with asyncio.TaskGroup() as tasks:
            for worker in range(8):
                tasks.create_task(publish(client, worker))
            for _ in range(KILLS):
                count = len(receipts)
                await until(lambda count=count: len(receipts) > count + 100, "messages are published")
                await asyncio.to_thread(broker.restart)
            count = len(receipts)
            await until(lambda count=count: len(receipts) > count + 100, "messages are published again")
            is_over = True
        found: Counter[tuple[int, int]] = Counter()
        async with client.consume("orders") as stream:
            async for records in stream.batches():
                found.update(tuple(record.json()) for record in records)
                if found.total() >= len(receipts):
                    break
    written = {(worker, number) for worker, count in Counter(receipts).items() for number in range(count)}
    assert found == Counter(written)


async def test_acked_messages_are_not_redelivered_and_none_is_lost_after_a_kill(
    broker: BrokerProcess,
) -> None:
    count = 3000
    acked: Counter[int] = Counter()
    again: list[int] = []

    async def handler(message: AsyncMessage) -> None:
        number = message.json()
        if number in acked:
            again.append(number)
        await message.ack()
        acked[number] += 1

    async with AsyncClient(broker.address) as client:
        await client.publish_many("jobs", range(count))
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(client.work("jobs", "workers", handler, concurrency=8, prefetch=32))
            for killed in range(1, KILLS + 1):
                await until(lambda killed=killed: len(acked) > killed * count // 5, "messages are acked")
                await asyncio.to_thread(broker.restart)
            await until(lambda: len(acked) == count or working.done(), "all messages are acked")
            client.stop()
        assert set(acked) == set(range(count))
        assert again == []
        backlogs = await SubscriptionAdmin(client.cluster).describe("workers", ["jobs"])
        assert sum(one.backlog for one in backlogs) == 0


def test_a_handler_that_blocks_for_several_lease_durations_keeps_its_message(broker: BrokerProcess) -> None:
    lease_seconds = 2.0
    with Client(broker.address) as client, Client(broker.address) as other, ThreadPoolExecutor(1) as thread:
        client.create_subscription("slow", "workers", configs={LEASE: str(int(lease_seconds * 1000))})
        client.publish_many("slow", [{"n": 1}, {"n": 2}])
        with client.subscribe("slow", "workers", prefetch=2) as messages:
            first = messages.take()
            assert first is not None
            stolen = thread.submit(other.subscribe("slow", "workers").take)
            threading.Event().wait(3 * lease_seconds)  # the thread blocks; the client's loop does not
            assert not stolen.done()
            first.ack()
            second = messages.take()  # it waited here for as long
            assert second is not None
            assert second.attempt == 1
            second.ack()
        other.stop()
        assert stolen.result(PATIENCE_SECONDS) is None


WORKER = """
import signal, sys
from headrace import Client

with Client(sys.argv[1]) as client:
    def stop(*_):
        client.stop()
        print("stopping", flush=True)

    signal.signal(signal.SIGTERM, stop)

    def handle(message):
        print("begun", message.text, flush=True)
        sys.stdin.readline()
        print("done", message.text, flush=True)

    client.work("tasks", "workers", handle, concurrency=1, prefetch=5)
print("left", flush=True)
"""


def test_a_stopping_worker_completes_its_messages_and_releases_the_rest(broker: BrokerProcess) -> None:
    with Client(broker.address) as client:
        client.create_topic("tasks", partitions=1)
        client.publish_many("tasks", [str(number) for number in range(5)])
        command = [sys.executable, "-c", WORKER, broker.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            assert worker.stdout.readline() == "begun 0\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.readline() == "stopping\n"
            worker.stdin.write("\n")
            worker.stdin.flush()
            assert worker.stdout.read() == "done 0\nleft\n"
            assert worker.wait(PATIENCE_SECONDS) == 0
        taken: list[tuple[str, int]] = []
        for message in client.subscribe("tasks", "workers"):
            with message:
                taken.append((message.text, message.attempt))
            if len(taken) == 4:
                break
        assert taken == [(str(number), 1) for number in range(1, 5)]


def test_messages_of_a_killed_worker_are_redelivered_after_their_leases(broker: BrokerProcess) -> None:
    with Client(broker.address) as client:
        client.create_subscription("tasks", "workers", configs={LEASE: "1000"})
        client.publish("tasks", "0")
        command = [sys.executable, "-c", WORKER, broker.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "begun 0\n"
            worker.kill()
        message = client.subscribe("tasks", "workers").take()
        assert message is not None
        assert (message.text, message.attempt) == ("0", 2)


async def test_a_transaction_is_atomic_although_the_broker_is_killed(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"num.partitions": "3"})
    count = 60
    async with AsyncClient(broker.address) as client:
        await client.publish_many("payments", range(count))
        booked = 0

        async def book() -> None:
            nonlocal booked
            async with client.consume("payments", group="bank", commit="manual") as stream:
                async for record in stream:
                    async with client.transaction("bookkeeper") as tx:
                        tx.ack(record)
                        for side in ("debit", "credit"):
                            await tx.publish("ledger", [side, record.json()], key=f"{side}{record.offset}")
                    booked += 1
                    if booked == count:
                        return

        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(book())
            for killed in range(1, KILLS + 1):
                await until(lambda killed=killed: booked > killed * count // 5 or working.done(), "payments are booked")
                await asyncio.to_thread(broker.restart)
        ledger: Counter[tuple[str, int]] = Counter()
        async with client.consume("ledger") as stream:
            async for records in stream.batches():
                ledger.update(tuple(record.json()) for record in records)
                if ledger.total() >= 2 * count:
                    break
        assert ledger == Counter((side, number) for side in ("debit", "credit") for number in range(count))


def test_the_later_of_two_producers_fences_the_earlier(broker: BrokerProcess) -> None:
    with Client(broker.address) as old, Client(broker.address) as new:

        def be_slow() -> None:
            with old.transaction("bookkeeper") as mine:
                mine.publish("ledger", "old")
                with new.transaction("bookkeeper") as theirs:
                    theirs.publish("ledger", "new")
                mine.publish("ledger", "late")

        with pytest.raises(ProducerFenced, match="give every worker an id of its own"):
            be_slow()
        with new.consume("ledger") as stream:
            assert next(iter(stream)).text == "new"


def test_threads_of_a_sync_client_share_the_work(broker: BrokerProcess) -> None:
    done: Counter[int] = Counter()
    with Client(broker.address) as client, ThreadPoolExecutor(1) as thread:

        def handler(message: Message) -> None:
            done[message.json()] += 1

        client.publish_many("shared", range(500))
        working = thread.submit(client.work, "shared", "workers", handler, concurrency=8)
        wait_until(lambda: len(done) == 500 or working.done(), "all is done")
        client.stop()
        working.result(PATIENCE_SECONDS)
    assert set(done.values()) == {1}


async def test_a_client_waits_for_a_broker_that_starts_later(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "late")
    try:
        async with AsyncClient(broker.address) as client:
            publishing = asyncio.create_task(client.publish("orders", b"early"))
            with pytest.raises(HeadraceError, match="start a broker with `headrace serve`"):
                async with AsyncClient(broker.address, timeout="100ms") as hasty:
                    await hasty.publish("orders", b"hasty")
            await asyncio.to_thread(broker.start)
            assert (await publishing).offset == 0
    finally:
        broker.stop()


def test_the_code_of_the_page_runs(tmp_path: Path, broker: BrokerProcess) -> None:
    """Run every block of docs/sdk.md as one program; its functions are called with a client."""
    page = (ROOT / "docs" / "sdk.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    calls = ["publish", "work", "configure", "drain", "administer", "read", "book", "ask"]
    assert all(f"async def {name}(client: AsyncClient)" in page for name in calls)
    program = "\n".join(blocks).replace("127.0.0.1:9092", broker.address)
    program += f"""

async def run_all() -> None:
    for function in ({", ".join(calls)}):
        async with AsyncClient({broker.address!r}) as client:
            await function(client)
            print("ran", function.__name__)


asyncio.run(run_all())
test_an_order_is_billed()
"""
    path = tmp_path / "page.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    ran = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert [line for line in ran.stdout.splitlines() if line.startswith("ran ")] == [f"ran {name}" for name in calls]


INTERRUPTED_WORKER = """
import signal, sys
from headrace import Client

def on_interrupt(*args):
    print("interrupted", flush=True)
    signal.default_int_handler(*args)

def handle(message):
    print("begin", message.text, flush=True)
    print("end", sys.stdin.readline(), flush=True)

signal.signal(signal.SIGINT, on_interrupt)
with Client(sys.argv[1]) as client:
    try:
        client.work("jobs", "workers", handle, concurrency=1)
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
"""


@pytest.fixture
def interrupted_worker(broker: BrokerProcess) -> Iterator[subprocess.Popen[str]]:
    """A worker whose handler runs until it reads a line, and which has been interrupted once."""
    with Client(broker.address) as client:
        client.create_topic("jobs", partitions=1)
        client.publish_many("jobs", ["a", "b"])
    command = [sys.executable, "-c", INTERRUPTED_WORKER, broker.address]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begin a\n"
        worker.send_signal(signal.SIGINT)
        assert worker.stdout.readline() == "interrupted\n"
        yield worker
        worker.kill()


def test_ctrl_c_lets_the_handler_end_and_acks_its_message(
    broker: BrokerProcess, interrupted_worker: subprocess.Popen[str]
) -> None:
    out, _ = interrupted_worker.communicate("done\n", timeout=PATIENCE_SECONDS)
    assert out.split() == ["end", "done", "KeyboardInterrupt"]
    assert interrupted_worker.returncode == 0
    with Client(broker.address) as client:
        message = client.subscribe("jobs", "workers").take()
        assert message is not None
        assert (message.text, message.attempt) == ("b", 1), "the first message is acked, the second was not begun"


def test_a_second_ctrl_c_does_not_wait_for_the_handler(
    broker: BrokerProcess, interrupted_worker: subprocess.Popen[str]
) -> None:
    assert interrupted_worker.stderr is not None
    assert "interrupt again to end at once" in interrupted_worker.stderr.readline()
    interrupted_worker.send_signal(signal.SIGINT)
    assert interrupted_worker.wait(PATIENCE_SECONDS) == 0
    assert interrupted_worker.stdout is not None
    assert interrupted_worker.stdout.read().split() == ["interrupted", "KeyboardInterrupt"]
    with Client(broker.address) as client:
        message = client.subscribe("jobs", "workers").take()
        assert message is not None
        assert (message.text, message.attempt) == ("a", 1), "the message is released, which counts no delivery"
