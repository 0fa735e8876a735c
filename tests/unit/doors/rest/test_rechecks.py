"""Streams end when their caller is not welcome any more, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tests.unit.client.scripted import in_world
from tests.unit.doors.rest.test_access import Office, request, with_office

from headrace.doors.rest.access import OpenGatekeeper, TokenGatekeeper
from headrace.doors.rest.rechecks import RECHECK_SECONDS, rechecked
from headrace.http.message import Response, Streamed, Upgraded
from headrace.testkit.world import World


class Source:
    """One chunk per second, without end."""

    def __init__(self) -> None:
        self.is_closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(1.0)
                yield b"tick"
        finally:
            self.is_closed = True


class Socket:
    def __init__(self) -> None:
        self.sent = 0
        self.closed_with: int | None = None

    async def receive(self) -> str | bytes | None:
        return None

    async def send(self, _text: str) -> None:
        self.sent += 1

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed_with = code


def test_a_whole_answer_stays_as_it_is() -> None:
    async def scenario(world: World) -> None:
        answer = Response()
        welcome = OpenGatekeeper()
        assert rechecked(answer, lambda: welcome.is_still_welcome(request()), world.clock) is answer

    in_world(scenario)


def test_a_stream_ends_soon_after_its_token_was_revoked_and_closes_its_source() -> None:
    async def scenario(world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        source = Source()
        streamed = Streamed(source.chunks(), "text/event-stream", 200, [("x-a", "b")])
        answer = rechecked(streamed, lambda: gatekeeper.is_still_welcome(request()), world.clock)
        assert isinstance(answer, Streamed)
        assert (answer.content_type, answer.headers) == ("text/event-stream", [("x-a", "b")])
        count = 0
        async for _ in answer.chunks:
            count += 1
            if count == 60:
                office.tokens.clear()
        assert 60 <= count <= 60 + 2 * RECHECK_SECONDS
        assert source.is_closed

    with_office(scenario)


def test_a_stream_that_is_closed_closes_its_source() -> None:
    async def scenario(world: World) -> None:
        source = Source()
        answer = rechecked(Streamed(source.chunks(), "text/plain"), _yes, world.clock)
        assert isinstance(answer, Streamed)
        assert await anext(answer.chunks) == b"tick"
        await answer.chunks.aclose()  # type: ignore[attr-defined]
        assert source.is_closed

    in_world(scenario)


def test_a_stream_goes_on_while_no_broker_can_tell() -> None:
    async def scenario(_: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        assert await gatekeeper.is_still_welcome(request())
        office.is_silent = True
        await asyncio.sleep(5.0)
        assert await gatekeeper.is_still_welcome(request())

    with_office(scenario)


def test_a_socket_is_closed_when_its_token_is_no_longer_good() -> None:
    async def scenario(world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        socket = Socket()

        async def talk(checked: object) -> None:
            for count in range(10):
                await asyncio.sleep(1.0)
                if count == 1:
                    office.tokens.clear()
                await checked.send("x")  # type: ignore[attr-defined]
            assert await checked.receive() is None  # type: ignore[attr-defined]

        await gatekeeper.is_still_welcome(request())
        answer = rechecked(Upgraded(talk), lambda: gatekeeper.is_still_welcome(request()), world.clock)
        assert isinstance(answer, Upgraded)
        await answer.talk(socket)
        assert socket.closed_with == 1008
        assert socket.sent == 3

    with_office(scenario)


async def _yes() -> bool:
    return True
