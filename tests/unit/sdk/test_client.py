"""The sync twin, against a broker in this process: it does the same, from any thread, and its loop is never blocked."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.model.errors import RequestTimedOut
from headrace.sdk import (
    AsyncClient,
    AsyncMessage,
    AsyncTransaction,
    Client,
    Message,
    PublishFailed,
    Reject,
    Transaction,
)
from headrace.sdk.async_client import AsyncClient as Original
from headrace.testkit import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"num.partitions": "1"}) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address) as client:
        yield client


@pytest.mark.parametrize(
    ("twin", "original"), [(Client, AsyncClient), (Message, AsyncMessage), (Transaction, AsyncTransaction)]
)
def test_the_twin_has_every_method_with_the_same_parameters(twin: type, original: type) -> None:
    for name, method in inspect.getmembers(original, inspect.isfunction):
        if not name.startswith("_"):
            mine = inspect.signature(getattr(twin, name)).parameters
            assert mine == inspect.signature(method).parameters, name


def test_the_twin_is_made_with_the_same_parameters() -> None:
    theirs = dict(inspect.signature(Original).parameters)
    theirs.pop("cluster")
    assert dict(inspect.signature(Client).parameters) == theirs


def test_messages_are_settled_by_with(client: Client) -> None:
    client.publish_many("settled", ["a", "b"])
    seen = []
    for message in client.subscribe("settled", "workers"):
        with message:
            seen.append((message.text, message.attempt, message.is_settled))
            if message.text == "a" and message.attempt == 1:
                raise ValueError("once more")
        assert message.is_settled
        if len(seen) == 3:
            break
    assert sorted(seen) == [("a", 1, False), ("a", 2, False), ("b", 1, False)]


def test_messages_are_settled_by_hand(client: Client) -> None:
    client.publish_many("by-hand", ["a", "b"])
    with client.subscribe("by-hand", "workers", prefetch=1) as messages:
        first = messages.take()
        assert first is not None
        first.extend("1m")
        first.nack(delay=0, reason="later")
        texts = []
        for message in messages:
            texts.append((message.text, message.attempt))
            if message.text == "b":
                message.reject("no use")
                break
            message.ack()
    assert texts == [("a", 2), ("b", 1)]


def test_handlers_run_in_threads_and_settle_themselves_if_they_like(client: Client) -> None:
    client.publish_many("threads", range(6))
    together = threading.Barrier(3, timeout=20)
    done: list[int] = []
    all_done = threading.Event()

    def handler(message: Message) -> None:
        together.wait()
        if message.json() == 5:
            raise Reject("no fives")
        if message.json() == 4:
            message.ack()
        done.append(message.json())
        if len(done) == 5:
            all_done.set()

    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(client.work, "threads", "workers", handler, concurrency=3)
        assert all_done.wait(20)
        client.stop()
        working.result(20)
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_requests_are_answered_by_functions_too(broker: EmbeddedBroker, client: Client) -> None:
    with Client(broker.address) as server, ThreadPoolExecutor(1) as thread:
        responding = thread.submit(server.respond, "prices", "pricing", lambda message: message.json() * 2)
        assert client.request("prices", 21, timeout="10s").json() == 42
        server.stop()
        responding.result(20)
        with pytest.raises(RequestTimedOut):
            client.request("prices", 1, timeout=0.05)


def test_streams_and_transactions_have_their_twins(client: Client) -> None:
    client.publish_many("payments", ["1", "2"])
    with client.consume("payments", group="bank", commit="manual") as stream:
        for record in stream:
            with client.transaction("twin") as tx:
                tx.ack(record)
                tx.publish("ledger", f"booked {record.text}", key="k")
            if record.text == "2":
                break
    with client.consume("ledger", group="auditors") as stream:
        first = next(stream.batches())
        stream.commit()
    assert [record.text for record in first] == ["booked 1", "booked 2"]


def test_many_threads_may_use_it_at_once(client: Client) -> None:
    with ThreadPoolExecutor(8) as threads:
        receipts = list(threads.map(lambda number: client.publish("shared", number), range(100)))
    assert sorted(receipt.offset for receipt in receipts) == list(range(100))
    with client.subscribe("shared", "workers") as messages, ThreadPoolExecutor(4) as threads:

        def take(_: int) -> int:
            message = messages.take()
            assert message is not None
            with message:
                number: int = message.json()
            return number

        assert sorted(threads.map(take, range(100))) == list(range(100))


def test_what_is_wrong_is_raised_in_the_thread_that_asked(client: Client) -> None:
    with pytest.raises(PublishFailed):
        client.publish_many("wrong", [object()])


def test_delayed_messages_can_be_cancelled(client: Client) -> None:
    client.cancel(client.publish("later", b"a", delay="1h"))
    assert client.create_topic("later") is False
    assert client.dead_letters("later") == []


async def test_on_its_own_loop_it_does_not_wait_for_itself(broker: EmbeddedBroker) -> None:
    async with AsyncClient(broker.address) as client:
        await client.publish("loop", b"a")
        refused: list[str] = []
        loop = asyncio.get_running_loop()

        def handler(message: Message) -> None:
            loop.call_soon_threadsafe(lambda: refused.append(_write_error(message)))
            loop.call_soon_threadsafe(client.stop)

        await client.work("loop", "workers", handler)
        assert refused == ["this would wait for itself: on the client's own loop, use the async methods"]


def _write_error(message: Message) -> str:
    try:
        message.ack()
    except RuntimeError as error:
        return str(error)
    return "none"
