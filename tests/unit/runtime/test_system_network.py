"""What only the real network has: sockets, their options, and the limits of the process."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket

import pytest

from headrace.runtime import network as module
from headrace.runtime.network import ByteStream, SocketStream, SystemNetwork

HOST = "127.0.0.1"


async def test_sockets_send_at_once_and_watch_for_vanished_peers() -> None:
    accepted: asyncio.Future[ByteStream] = asyncio.get_running_loop().create_future()
    listener = await SystemNetwork().listen(HOST, 0, accepted.set_result)
    caller = await SystemNetwork().connect(HOST, listener.address[1], 5)
    called = await accepted
    assert isinstance(called, SocketStream)
    for link in (caller, called):
        assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not link._socket.getblocking()
        link.close()
    listener.close()


async def test_a_name_with_two_kinds_of_address_is_listened_to_on_the_common_one() -> None:
    listener = await SystemNetwork().listen("localhost", 0, lambda link: link.close())
    assert listener.address[0] == HOST
    caller = await SystemNetwork().connect("localhost", listener.address[1], 5)
    caller.close()
    listener.close()


async def test_a_caller_who_gets_no_answer_gives_up_at_the_deadline() -> None:
    blocked = socket.create_server((HOST, 0), backlog=0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(blocked.getsockname())
    with pytest.raises(TimeoutError):
        await SystemNetwork().connect(HOST, blocked.getsockname()[1], 0.05)
    for sock in (*fillers, blocked):
        sock.close()


async def test_accepting_goes_on_after_the_process_ran_out_of_descriptors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACCEPT_PAUSE_SECONDS", 0.001)
    accepted: asyncio.Future[ByteStream] = asyncio.get_running_loop().create_future()
    listener = await SystemNetwork().listen(HOST, 0, accepted.set_result)
    caller = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        caller.setblocking(False)
        assert caller.connect_ex(listener.address) in (0, errno.EINPROGRESS)
        while len(caplog.records) == 0:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not accepted.done()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    link = await asyncio.wait_for(accepted, 10)
    assert [record.levelname for record in caplog.records] == ["ERROR"], "once, not per try"
    link.close()
    caller.close()
    listener.close()


async def test_one_wake_up_accepts_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCEPTS_PER_WAKE_UP", 2)
    accepted: list[ByteStream] = []
    listener = await SystemNetwork().listen(HOST, 0, accepted.append)
    callers = [socket.create_connection(listener.address) for _ in range(5)]
    listener._accept_waiting()
    assert len(accepted) == 2
    while len(accepted) < 5:
        await asyncio.sleep(0)
    for link in accepted:
        link.close()
    for caller in callers:
        caller.close()
    listener.close()


async def test_a_listener_closed_by_the_one_it_calls_stops_accepting() -> None:
    accepted: list[ByteStream] = []

    def accept(link: ByteStream) -> None:
        accepted.append(link)
        listener.close()

    listener = await SystemNetwork().listen(HOST, 0, accept)
    callers = [socket.create_connection(listener.address) for _ in range(3)]
    while not accepted:
        await asyncio.sleep(0)
    assert len(accepted) == 1
    for link in accepted:
        link.close()
    for caller in callers:
        caller.close()
