"""Push from a real `headrace serve`: webhooks that fail, hang and recover, and streams with flow control."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.integration.gateways import GatewayProcess
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, free_ports

ROOT = Path(__file__).parents[2]
SECRET = "s3cret"
KEYS = ("x", "y", "z")


@pytest.fixture
def pushing(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "broker", options=("--push-private",))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


class Api:
    """A client of the REST API of a broker."""

    def __init__(self, session: aiohttp.ClientSession, broker: BrokerProcess) -> None:
        self.session = session
        self.url = f"http://127.0.0.1:{broker.http_port}"

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200, **headers: str) -> Any:
        async with self.session.request(method, self.url + path, json=body, headers=headers) as response:
            text = await response.text()
            assert response.status == status, f"{method} {path}: {response.status} {text}"
            return await response.json() if text else None

    async def prepare(self, **configs: str) -> None:
        await self.ask("POST", "/topics", {"name": "jobs", "partitions": 1}, status=201)
        body = {"name": "workers", "start": "earliest", "configs": configs}
        await self.ask("POST", "/topics/jobs/subscriptions", body, status=201)

    async def publish(self, value: Any, key: str = "k") -> None:
        await self.ask("POST", "/topics/jobs/messages", value, status=201, **{"Headrace-Key": key})

    async def push_status(self) -> Any:
        return (await self.ask("GET", "/subscriptions/workers/push"))["status"]


def play(broker: BrokerProcess, scenario: Callable[[Api], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(3 * PATIENCE_SECONDS), aiohttp.ClientSession() as session:
            await scenario(Api(session, broker))

    try:
        asyncio.run(run())
    except TimeoutError as error:
        raise AssertionError(
            f"in vain; the broker {'runs' if broker.running else 'has ended'}:\n{broker.log_tail()}"
        ) from error


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():
            await asyncio.sleep(0.02)


async def until_circuit(api: Api, state: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (status := await api.push_status()) is None or status["circuit"] != state:
            await asyncio.sleep(0.05)


def is_genuine() -> Callable[..., bool]:
    """Return the program of docs/push.md."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "push.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    found: Callable[..., bool] = names["is_genuine"]
    return found


class Receiver:
    """A webhook receiver whose port stays the same after restarts."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.mood = "well"
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.received = 0
        self.attempts: set[str] = set()
        self.forged: list[str] = []
        self._is_genuine = is_genuine()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        message_id = request.headers["Headrace-Message-Id"]
        if not self._is_genuine(SECRET, request.headers["Headrace-Signature"], message_id, body):
            self.forged.append(message_id)
        self.received += 1
        self.attempts.add(request.headers["Headrace-Attempt"])
        if self.mood == "fails":
            return web.Response(status=500)
        if self.mood == "hangs":
            await asyncio.sleep(3600)
        self.by_key[request.headers["Headrace-Key"]].append((await request.json())["n"])
        return web.Response(status=204)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_post("/hook", self._take)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        try:
            yield
        finally:
            await runner.cleanup()


def test_an_unreliable_receiver_gets_everything_in_key_order(
    pushing: BrokerProcess,
) -> None:
    async def scenario(api: Api) -> None:
        await api.prepare(**{"headrace.key.concurrency": "1", "share.delivery.count.limit": "1000"})
        receiver = Receiver()
        body = {"url": receiver.url, "secret": SECRET, "timeout": "500ms"}
        assert "secret" not in await api.ask("PUT", "/subscriptions/workers/push", body)
        published = 0

        async def publish(count: int) -> None:
            nonlocal published
            for _ in range(count):
                for key in KEYS:
                    await api.publish({"n": published}, key)
                published += 1

        def has_latest_data() -> bool:
            return all(len(set(receiver.by_key[key])) == published for key in KEYS)

        await publish(10)  # nobody listens yet
        await until_circuit(api, "open")
        async with receiver.listening():
            await until(has_latest_data)
            await until_circuit(api, "closed")
            for mood in ("fails", "hangs"):
                receiver.mood = mood
                await publish(10)
                await until_circuit(api, "open")
                receiver.mood = "well"
                await until(has_latest_data)
                await until_circuit(api, "closed")
        assert receiver.forged == []
        for key in KEYS:
            assert list(dict.fromkeys(receiver.by_key[key])) == list(range(published)), key
        described = await api.ask("GET", "/topics/jobs/subscriptions/workers")
        assert described["backlog"] == 0, described
        assert (await api.ask("GET", "/topics"))["topics"], "and no dead letters were made"

    play(pushing, scenario)


def test_nothing_is_lost_when_the_broker_is_killed_while_it_pushes(pushing: BrokerProcess) -> None:
    async def scenario(api: Api) -> None:
        await api.prepare(**{"share.record.lock.duration.ms": "1000"})
        receiver = Receiver()
        async with receiver.listening():
            await api.ask("PUT", "/subscriptions/workers/push", {"url": receiver.url, "secret": SECRET})
            for number in range(60):
                await api.publish({"n": number})
            await until(lambda: len(receiver.by_key["k"]) >= 10)
            pushing.kill()
            await asyncio.to_thread(pushing.start)
            await until(lambda: set(receiver.by_key["k"]) == set(range(60)))
        assert receiver.forged == []

    play(pushing, scenario)


def test_a_private_address_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker")
    try:
        broker.start()

        async def scenario(api: Api) -> None:
            await api.prepare()
            receiver = Receiver()
            async with receiver.listening():
                await api.ask("PUT", "/subscriptions/workers/push", {"url": receiver.url, "secret": SECRET})
                await api.publish({"n": 1})
                await until_circuit(api, "open")
                assert "not a public address" in (await api.push_status())["last_error"]
                assert receiver.received == 0
            assert SECRET not in broker.log_text()

        play(broker, scenario)
    finally:
        broker.stop()


def test_a_push_that_one_process_may_not_send_is_sent_by_another(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker")
    gateway = GatewayProcess(tmp_path / "gateway", broker.address, "--push-private")
    try:
        broker.start()
        gateway.start()

        async def scenario(api: Api) -> None:
            await api.prepare()
            receiver = Receiver()
            async with receiver.listening():
                await api.ask("PUT", "/subscriptions/workers/push", {"url": receiver.url, "secret": SECRET})
                for number in range(30):
                    await api.publish({"n": number})
                await until(lambda: set(receiver.by_key["k"]) == set(range(30)))
            async with api.session.get(f"{gateway.url}/subscriptions/workers/push") as response:
                status = (await response.json())["status"]
            assert (status["circuit"], status["failed"]) == ("closed", 0)
            assert receiver.attempts == {"1"}, "what was not sent was not delivered"

        play(broker, scenario)
        assert gateway.terminate() == 0
    finally:
        gateway.stop()
        broker.stop()


def test_an_event_stream_respects_max_in_flight(pushing: BrokerProcess) -> None:
    async def scenario(api: Api) -> None:
        await api.prepare()
        for number in range(20):
            await api.publish({"n": number})
        url = f"{api.url}/subscriptions/workers/stream?max_in_flight=5&lease=10m"
        async with api.session.get(url, headers={"Accept": "text/event-stream"}) as stream:
            assert (stream.status, stream.content_type) == (200, "text/event-stream")
            got: list[Any] = []
            reading = asyncio.create_task(read_events(stream, got))
            await until(lambda: len(got) == 5)
            described = await api.ask("GET", "/topics/jobs/subscriptions/workers")
            assert (len(got), described["leased"]) == (5, 5)
            while len(got) < 20:
                before = len(got)
                await api.ask("POST", "/subscriptions/workers/ack", {"receipt": got[before - 5]["receipt"]})
                await until(lambda before=before: len(got) > before)  # type: ignore[misc]
                assert len(got) == before + 1
            assert [message["value"]["n"] for message in got] == list(range(20))
            reading.cancel()

    play(pushing, scenario)


async def read_events(stream: aiohttp.ClientResponse, got: list[Any]) -> None:
    async for line in stream.content:
        if line.startswith(b"data: "):
            got.append(json.loads(line[6:]))  # noqa: PERF401 - as they come


def test_unsettled_messages_of_a_websocket_go_to_the_next_one(pushing: BrokerProcess) -> None:
    async def scenario(api: Api) -> None:
        await api.prepare()
        for number in range(10):
            await api.publish({"n": number})
        url = f"{api.url}/subscriptions/workers/stream?max_in_flight=3&lease=10m"
        async with api.session.ws_connect(url) as socket:
            first = [await socket.receive_json(timeout=PATIENCE_SECONDS) for _ in range(3)]
            assert [message["value"]["n"] for message in first] == [0, 1, 2]
            with pytest.raises(TimeoutError):
                await socket.receive(timeout=1.0)
        async with api.session.ws_connect(url) as socket:
            seen: list[int] = []
            while len(seen) < 10:
                message = await socket.receive_json(timeout=PATIENCE_SECONDS)
                seen.append(message["value"]["n"])
                await socket.send_json({"ack": message["receipt"]})
            assert sorted(seen) == list(range(10)), "those of the first socket came back at once"
            await socket.send_str("nonsense")
            assert "error" in await socket.receive_json(timeout=PATIENCE_SECONDS)
            await socket.send_json({"ack": first[0]["receipt"]})
            (refused,) = (await socket.receive_json(timeout=PATIENCE_SECONDS))["refused"]
            assert refused["code"] == "lease_lost"

    play(pushing, scenario)


def test_a_configured_push_begins_with_the_start_of_the_broker(pushing: BrokerProcess) -> None:
    async def scenario(api: Api) -> None:
        await api.prepare()
        receiver = Receiver()
        await api.ask("PUT", "/subscriptions/workers/push", {"url": receiver.url, "secret": SECRET})
        await asyncio.to_thread(pushing.terminate)
        await asyncio.to_thread(pushing.start)
        async with receiver.listening():
            await api.publish({"n": 1})
            await until(lambda: receiver.by_key["k"] == [1])

    play(pushing, scenario)
    assert pushing.terminate() == 0
