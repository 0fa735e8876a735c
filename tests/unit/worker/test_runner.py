"""Running an app against a broker in this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.worker import handlers
from tests.unit.worker.handlers import Order

from headrace import AsyncClient, AsyncMessage, Client, Message
from headrace.client.queues.schedule import Schedule
from headrace.testkit import EmbeddedBroker
from headrace.worker import App, Reject, Retries, Retry, TimeLimitExceeded
from headrace.worker.app import SCHEDULE_SUFFIX
from headrace.worker.runner import Runner
from headrace.worker.schedules import reconcile_schedules

SOON = Retries(limit=3, backoff=0)


class RunningApp:
    """An app that runs while the block does. `publish` returns when the message was written."""

    def __init__(self, app: App, broker: EmbeddedBroker) -> None:
        self.app = app
        self.broker = broker

    async def __aenter__(self) -> RunningApp:
        self.client = await AsyncClient(self.broker.address).__aenter__()
        self._worker_client = AsyncClient(self.broker.address)
        self.runner = Runner(self.app, self._worker_client, self.broker.address, concurrency=4, processes=1)
        self._task = asyncio.create_task(self.runner.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.runner.stop()
        await self._task
        await self._worker_client.close()
        await self.client.close()

    async def publish(self, value: Any, topic: str = "orders", **options: Any) -> None:
        await self.client.publish(topic, value, **options)

    async def reasons(self, count: int = 1, topic: str = "orders") -> list[str]:
        """The reasons of this many dead letters."""
        while len(letters := await self.client.dead_letters(topic)) < count:
            await asyncio.sleep(0.02)
        return [letter.death.reason or "" for letter in letters if letter.death is not None]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"num.partitions": "1"}) as broker:
        yield broker


async def test_values_are_decoded_and_acked(broker: EmbeddedBroker) -> None:
    app, orders = App("billing"), asyncio.Queue[tuple[Order, str | None]]()

    @app.subscriber("orders")
    async def bill(order: Order, message: AsyncMessage) -> None:
        orders.put_nowait((order, message.key))

    async with RunningApp(app, broker) as running:
        await running.publish({"id": 7}, key="c-42")
        assert await orders.get() == (Order(7), "c-42")
    async with AsyncClient(broker.address) as client:
        messages = client.subscribe("orders", "billing")
        await client.publish("orders", {"id": 8})
        message = await messages.take()
        assert message is not None
        assert message.json() == {"id": 8}  # the first one is not delivered again
        await messages.close()


async def test_an_ordinary_function_runs_in_a_thread(broker: EmbeddedBroker) -> None:
    app, done = App("billing"), asyncio.Queue[tuple[int, bytes | None]]()
    loop = asyncio.get_running_loop()

    @app.subscriber("orders")
    def bill(message: Message, client: Client) -> None:
        client.publish("billed", message.value)
        loop.call_soon_threadsafe(done.put_nowait, (threading.get_ident(), message.value))

    async with RunningApp(app, broker) as running:
        await running.publish(b"1")
        thread, value = await done.get()
    assert thread != threading.get_ident()
    assert value == b"1"


async def test_a_value_of_another_type_becomes_a_dead_letter_at_once(broker: EmbeddedBroker) -> None:
    app, calls = App("billing"), []

    @app.subscriber("orders")
    async def bill(order: Order) -> None:
        calls.append(order)

    async with RunningApp(app, broker) as running:
        await running.publish({"id": "not a number"})
        [reason] = await running.reasons()
    assert "Undecodable" in reason
    assert calls == []


async def test_rules_decide_what_follows_an_exception(broker: EmbeddedBroker) -> None:
    app, calls = App("billing"), []

    @app.subscriber("orders", on={KeyError: "ack", OSError: Reject("no disk"), LookupError: Retry(delay=0)}, retry=SOON)
    async def bill(kind: str) -> None:
        calls.append(kind)
        raise {"key": KeyError, "disk": OSError, "index": IndexError, "other": ValueError}[kind]("oh")

    async with RunningApp(app, broker) as running:
        for kind in ("key", "disk", "index", "other"):
            await running.publish(kind)
        reasons = await running.reasons(3)
        stats = next(iter(running.runner.stats.values()))
    assert sorted(reasons) == ["IndexError: oh", "ValueError: oh", "no disk"]
    assert {kind: calls.count(kind) for kind in calls} == {"key": 1, "disk": 1, "index": 3, "other": 3}
    assert stats.failed == {"ack": 1, "retry": 6, "reject": 1}
    assert stats.seconds.count == 8


async def test_a_time_limit_ends_a_coroutine(broker: EmbeddedBroker) -> None:
    app = App("billing")

    @app.subscriber("orders", time_limit=0.05, on={TimeLimitExceeded: "reject"})
    async def bill() -> None:
        await asyncio.sleep(300)

    async with RunningApp(app, broker) as running:
        await running.publish("1")
        assert await running.reasons() == ["TimeLimitExceeded: the handler ran longer than 0.05 s"]


@pytest.mark.parametrize(
    ("function", "limit", "reason"),
    [
        (handlers.sleep_long, 0.2, "TimeLimitExceeded: the handler ran longer than 0.2 s"),
        (handlers.exit_at_once, None, "WorkerDied: the worker process"),
        (handlers.raise_value_error, None, "ValueError: order 7"),
        (handlers.raise_unpicklable, None, "HandlerFailed: Local: 1 and 2"),
    ],
)
async def test_a_failure_in_a_process_fails_its_message_only(
    broker: EmbeddedBroker, function: Callable[..., Any], limit: float | None, reason: str
) -> None:
    app = App("billing")
    app.subscriber("orders", process=True, on={Exception: "reject"}, time_limit=limit)(function)
    app.subscriber("others", process=True, result_topic="processes")(handlers.process_of)
    async with RunningApp(app, broker) as running:
        await running.client.create_topic("processes")
        await running.publish({"id": 7})
        [said] = await running.reasons()
        assert said.startswith(reason)
        await running.publish({"id": 8}, "others")
        async with running.client.consume("processes") as stream:
            record = await stream.take()
    assert record is not None
    assert record.json(int) != os.getpid()


async def test_a_result_is_published_with_the_key_of_the_message(broker: EmbeddedBroker) -> None:
    app = App("billing")

    @app.subscriber("orders", result_topic="invoices")
    async def bill(order: Order) -> dict[str, int] | None:
        return {"order": order.id} if order.id else None

    async with RunningApp(app, broker) as running:
        await running.client.create_topic("invoices")
        await running.publish({"id": 0}, key="none")
        await running.publish({"id": 7}, key="c-42")
        async with running.client.consume("invoices") as stream:
            record = await stream.take()
    assert record is not None
    assert (record.key, record.json()) == ("c-42", {"order": 7})


async def test_a_request_gets_the_result_as_its_reply(broker: EmbeddedBroker) -> None:
    app = App("pricing")

    @app.subscriber("prices")
    async def price(item: str) -> dict[str, int]:
        return {item: 30}

    async with RunningApp(app, broker) as running:
        reply = await running.client.request("prices", "lamp")
    assert reply.json() == {"lamp": 30}


async def test_middlewares_wrap_a_handler_from_the_outside_in(broker: EmbeddedBroker) -> None:
    app, events = App("billing"), asyncio.Queue[str]()

    @app.middleware
    async def outer(message: AsyncMessage, call_next: Any) -> Any:
        events.put_nowait("outer begins")
        try:
            return await call_next(message)
        finally:
            events.put_nowait("outer ends")

    @app.middleware
    async def inner(message: AsyncMessage, call_next: Any) -> Any:
        events.put_nowait("inner")
        return await call_next(message)

    @app.subscriber("orders")
    async def bill(order: Order) -> None:
        events.put_nowait("handler")

    async with RunningApp(app, broker) as running:
        await running.publish({"id": 1})
        assert [await events.get() for _ in range(4)] == ["outer begins", "inner", "handler", "outer ends"]


async def test_a_lifespan_surrounds_all_messages(broker: EmbeddedBroker) -> None:
    app, events = App("billing"), []
    begun = asyncio.Event()

    @app.lifespan
    @asynccontextmanager
    async def lifespan(client: AsyncClient) -> AsyncIterator[None]:
        events.append("begins")
        begun.set()
        yield
        events.append("ends")

    @app.subscriber("orders")
    async def bill(order: Order) -> None: ...

    async with RunningApp(app, broker):
        await begun.wait()
    assert events == ["begins", "ends"]


async def test_stop_lets_handlers_finish_and_releases_the_rest(broker: EmbeddedBroker) -> None:
    app, begun, may_end = App("billing"), asyncio.Event(), asyncio.Event()

    @app.subscriber("orders", concurrency=1)
    async def bill(order: Order) -> None:
        begun.set()
        await may_end.wait()

    async with AsyncClient(broker.address) as client:
        await client.publish_many("orders", [{"id": 1}, {"id": 2}])
        async with RunningApp(app, broker) as running:
            await begun.wait()
            running.runner.stop()
            may_end.set()
        messages = client.subscribe("orders", "billing")
        message = await messages.take()
        assert message is not None
        assert (message.json(), message.attempt) == ({"id": 2}, 1)
        await messages.close()


async def test_a_worker_outlives_an_outage_of_its_broker(broker: EmbeddedBroker) -> None:
    app, orders = App("billing"), asyncio.Queue[int]()

    @app.subscriber("orders")
    async def bill(order: Order) -> None:
        orders.put_nowait(order.id)

    async with RunningApp(app, broker) as running:
        await running.publish({"id": 1})
        assert await orders.get() == 1
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await running.publish({"id": 2})
        while await orders.get() != 2:  # the ack of the first one may have been lost: it is repeated
            pass


async def test_a_schedule_calls_its_handler_again_and_again(broker: EmbeddedBroker) -> None:
    app, ticks = App("billing"), asyncio.Queue[str | None]()

    @app.scheduled("every 100ms", name="tick", expires="1m")
    async def tick(message: AsyncMessage) -> None:
        ticks.put_nowait(message.key)

    async with RunningApp(app, broker):
        assert [await ticks.get() for _ in range(3)] == ["tick"] * 3


async def test_schedules_follow_their_declarations(broker: EmbeddedBroker) -> None:
    topic = "billing" + SCHEDULE_SUFFIX

    def declared(**repeats: str) -> App:
        app = App("billing")
        for name, repeat in repeats.items():

            async def handle() -> None: ...

            app.scheduled(repeat, name=name)(handle)
        return app

    async def waiting(client: AsyncClient) -> dict[bytes | None, str | None]:
        return {message.key: message.repeat async for message in Schedule(client.cluster, topic).messages()}

    async with AsyncClient(broker.address) as client:
        await reconcile_schedules(client, topic, declared(a="every 1h", b="every 2h").schedules)
        assert await waiting(client) == {b"a": "every 1h", b"b": "every 2h"}
        changed = declared(b="every 3h", c="0 6 * * *").schedules
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):  # workers that start at the same time
                tasks.create_task(reconcile_schedules(client, topic, changed))
        assert await waiting(client) == {b"b": "every 3h", b"c": "0 6 * * *"}
        assert await Schedule(client.cluster, topic).count() == 2
