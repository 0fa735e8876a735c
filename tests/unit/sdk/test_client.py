"""The synchronous client, against a broker in this process."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import assert_type, get_type_hints

import pytest

from headrace.model.errors import RequestTimedOut
from headrace.sdk import (
    AsyncClient,
    AsyncMessage,
    AsyncMessages,
    AsyncStream,
    AsyncTransaction,
    Backlog,
    Client,
    ClientClosed,
    Message,
    Messages,
    PublishFailed,
    Receipt,
    Reject,
    Reply,
    Stream,
    Transaction,
    Unreachable,
)
from headrace.sdk.loop_thread import LoopThread
from headrace.testkit import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"num.partitions": "1"}) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.address) as client:
        yield client


SYNC_CLASSES = [
    (Client, AsyncClient),
    (Message, AsyncMessage),
    (Messages, AsyncMessages),
    (Stream, AsyncStream),
    (Transaction, AsyncTransaction),
]


@pytest.mark.parametrize(
    ("sync", "original"), [(Client, AsyncClient), (Message, AsyncMessage), (Transaction, AsyncTransaction)]
)
def test_the_sync_class_has_every_method_with_the_same_parameters(sync: type, original: type) -> None:
    for name, method in inspect.getmembers(original, inspect.isfunction):
        if not name.startswith("_"):
            mine = inspect.signature(getattr(sync, name)).parameters
            assert mine == inspect.signature(method).parameters, name


@pytest.mark.parametrize(("sync", "original"), SYNC_CLASSES)
def test_every_sync_method_is_documented_and_has_the_parameters_of_its_original(sync: type, original: type) -> None:
    for name, method in vars(sync).items():
        if not name.startswith("_") and inspect.isfunction(method):
            assert not inspect.iscoroutinefunction(method), name
            assert inspect.getdoc(method), name
            assert method.__qualname__ == f"{sync.__name__}.{name}"
            theirs = inspect.signature(getattr(original, name)).parameters
            assert inspect.signature(method).parameters == theirs, name


def test_what_a_sync_method_opens_is_the_sync_class() -> None:
    for method, returned in ((Client.subscribe, Messages), (Client.consume, Stream), (Client.transaction, Transaction)):
        assert inspect.signature(method).return_annotation == returned.__name__
        assert get_type_hints(method)["return"] is returned, "the name must resolve outside of the SDK's own modules"


def test_the_sync_client_is_created_with_the_same_parameters() -> None:
    theirs = dict(inspect.signature(AsyncClient).parameters)
    theirs.pop("cluster")
    assert dict(inspect.signature(Client).parameters) == theirs


def check_types_of_sync_methods(client: Client, message: Message, stream: Stream) -> None:
    """Never called: mypy checks that the types of the async methods reach the users of the sync ones."""
    assert_type(client.publish("orders", 1, key="a"), Receipt)
    assert_type(client.publish_many("orders", [1]), list[Receipt])
    assert_type(client.request("prices", 1), Reply)
    assert_type(client.create_topic("orders", partitions=3), bool)
    assert_type(client.subscribe("orders", "billing", prefetch=1), Messages)
    assert_type(client.consume(["orders"], commit="manual"), Stream)
    assert_type(client.transaction("payments", timeout=1.0), Transaction)
    assert_type(client.subscribe("orders", "billing").take(), Message | None)
    assert_type(client.subscribe("orders", "billing").take(timeout="5s"), Message | None)
    assert_type(client.subscribe("orders", "billing").take(5, "5s"), list[Message])
    assert_type(client.backlog("orders", "billing"), Backlog)
    client.publish("orders")  # type: ignore[call-arg]
    client.subscribe("orders", "billing", start="middle")  # type: ignore[arg-type]
    message.nack(delay="5s", reason=1)  # type: ignore[arg-type]
    stream.commit("orders")  # type: ignore[arg-type]


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


def test_several_messages_are_taken_and_settled(client: Client) -> None:
    client.publish_many("several", ["a", "b", "c"])
    with client.subscribe("several", "workers") as messages:
        taken = messages.take(2, timeout="10s")
        assert [message.text for message in taken] == ["a", "b"]
        for message in taken:
            message.ack()
        assert client.backlog("several", "workers").messages == 1
        assert [message.text for message in client.peek("several", "workers")] == ["c"]
        last = messages.take(timeout="10s")
        assert last is not None
        last.ack()
        assert messages.take(5, timeout=0) == []
        assert messages.take(timeout=0) is None


def test_handlers_run_in_threads_and_may_settle_messages(client: Client) -> None:
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


def test_functions_can_respond_to_requests(broker: EmbeddedBroker, client: Client) -> None:
    with Client(broker.address) as server, ThreadPoolExecutor(1) as thread:
        responding = thread.submit(server.respond, "prices", "pricing", lambda message: message.json() * 2)
        assert client.request("prices", 21, timeout="10s").json() == 42
        server.stop()
        responding.result(20)
        with pytest.raises(RequestTimedOut):
            client.request("prices", 1, timeout=0.05)


def test_streams_and_transactions_work_without_await(client: Client) -> None:
    client.publish_many("payments", ["1", "2"])
    with client.consume("payments", group="bank", commit="manual") as stream:
        for record in stream:
            with client.transaction("sync") as tx:
                tx.ack(record)
                tx.publish("ledger", f"booked {record.text}", key="k")
            if record.text == "2":
                break
    with client.consume("ledger", group="auditors") as stream:
        first = next(stream.batches())
        stream.commit()
    assert [record.text for record in first] == ["booked 1", "booked 2"]


def test_many_threads_can_use_a_client(client: Client) -> None:
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


def test_errors_are_raised_in_the_calling_thread(client: Client) -> None:
    with pytest.raises(PublishFailed):
        client.publish_many("wrong", [object()])


def test_delayed_messages_can_be_cancelled(client: Client) -> None:
    client.cancel(client.publish("later", b"a", delay="1h"))
    assert client.create_topic("later") is False
    assert client.dead_letters("later") == []


async def test_a_call_on_the_clients_own_loop_is_rejected(broker: EmbeddedBroker) -> None:
    async with AsyncClient(broker.address) as client:
        await client.publish("loop", b"a")
        refused: list[str] = []
        loop = asyncio.get_running_loop()

        def handler(message: Message) -> None:
            loop.call_soon_threadsafe(lambda: refused.append(_write_error(message)))
            loop.call_soon_threadsafe(client.stop)

        await client.work("loop", "workers", handler)
        assert refused == ["this would wait for itself: on the client's own loop, use the async methods"]


def test_the_environment_names_the_brokers_unless_the_program_does(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SERVER", broker.address)
    with Client() as client:
        assert client.publish("environment", "a").offset == 0
    monkeypatch.setenv("HEADRACE_SERVER", "127.0.0.1:1")
    with Client(broker.address) as client:
        assert client.publish("environment", "b").offset == 1
    with Client(timeout=0.05) as client, pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        client.publish("environment", "c")


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="headrace")
    begun = threading.Event()

    def watch(record: logging.LogRecord) -> bool:
        if "no broker" in record.getMessage():
            begun.set()
        return True

    caplog.handler.addFilter(watch)
    with (
        EmbeddedBroker({"num.partitions": "1"}) as broker,
        Client(broker.address) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        client.publish("orders", "a")
        broker.stop()
        publishing = [threads.submit(client.publish, "orders", text) for text in ("b", "c")]
        assert begun.wait(30)
        broker.start()
        assert sorted(one.result(60).offset for one in publishing) == [1, 2]
    texts = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "headrace"]
    assert [(level, text.partition(" error=")[0].partition(" broker=")[0]) for level, text in texts] == [
        ("WARNING", "no broker is reachable, will retry"),
        ("INFO", "brokers are reachable again"),
    ]
    assert f"cannot connect to {broker.address}: connection refused" in texts[0][1]


def test_a_closed_client_says_so(broker: EmbeddedBroker) -> None:
    client = Client(broker.address)
    client.publish("closing", "a")
    messages = client.subscribe("closing", "workers")
    message = messages.take()
    assert message is not None
    client.close()
    client.close()
    for call in (
        lambda: client.publish("closing", "b"),
        lambda: client.subscribe("closing", "workers"),
        lambda: client.consume("closing"),
        lambda: client.work("closing", "workers", print),
        messages.take,
        message.ack,
    ):
        with pytest.raises(ClientClosed, match="This client is closed; create another one"):
            call()


def test_a_call_that_waits_when_the_client_is_closed_says_so() -> None:
    loop, begun = LoopThread("loop"), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(loop.call, wait())
        assert begun.wait(20)
        loop.stop()
        with pytest.raises(ClientClosed):
            waiting.result(20)


def _write_error(message: Message) -> str:
    try:
        message.ack()
    except RuntimeError as error:
        return str(error)
    return "none"
