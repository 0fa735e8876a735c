"""A real `headrace zookeeper` process whose servers can be killed or paused, and a proxy that can be disconnected."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.integration.process import PATIENCE_SECONDS, wait_until

READ_BYTES = 65536


class ZooKeeperProcess:
    """A ZooKeeper ensemble; its servers listen on consecutive ports, which stay the same after restarts."""

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data = folder / "data"
        self.ports = ports_in_a_row(nodes)
        self.hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "ZooKeeper does not run"
        return self._process

    def start(self) -> ZooKeeperProcess:
        command = [
            str(Path(sys.executable).with_name("headrace")),
            "zookeeper",
            *("--data", str(self.data)),
            *("--listen", f"127.0.0.1:{self.ports[0]}"),
            *("--nodes", str(len(self.ports))),
        ]
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("ab") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        wait_until(self._says_ready, "ZooKeeper says ready")
        return self

    def pid(self, number: int) -> int:
        """Return the process id of a server; servers are numbered from 1."""
        return int((self.data / f"node-{number}" / "pid").read_text())

    def send(self, number: int, what: signal.Signals) -> None:
        os.kill(self.pid(number), what)

    def leader(self) -> int:
        """Return the number of the leading server."""
        (number,) = [number for number, port in enumerate(self.ports, start=1) if "Mode: leader" in _ask(port, b"srvr")]
        return number

    def errors(self) -> str:
        return (self.folder / "err").read_text()

    def terminate(self) -> int:
        self.process.terminate()
        exit_code = self.process.wait(PATIENCE_SECONDS)
        self._process = None
        return exit_code

    def stop(self) -> None:
        """Kill all processes, in any state."""
        if self._process is not None:
            for number in range(1, len(self.ports) + 1):
                with suppress(ProcessLookupError, FileNotFoundError):
                    self.send(number, signal.SIGCONT)
            self.terminate()

    def _says_ready(self) -> bool:
        exit_code = self.process.poll()
        assert exit_code is None, f"ZooKeeper ended with {exit_code}:\n{self.errors()}"
        return (self.folder / "out").read_text() == f"ready zookeeper={self.hosts}\n"


class Cable:
    """A TCP proxy to one address that can reset its connections, or silently drop all data."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._is_torn = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.mend()
        self._server.close()
        self._drop()
        if self._carrying:
            await asyncio.wait(self._carrying)

    def tear(self) -> None:
        """Reset existing and new connections."""
        self._is_torn = True
        self._drop()

    def muffle(self) -> None:
        """Drop all data without closing connections."""
        self._whole.clear()

    def mend(self) -> None:
        """Forward again; connections with dropped data are closed, as after a long network failure."""
        if not self._whole.is_set():
            self._drop()
        self._is_torn = False
        self._whole.set()

    def _drop(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        if self._is_torn:
            writer.transport.abort()
            return
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._ends.add(other_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass_on(reader, other_writer))
            group.create_task(self._pass_on(other_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


def ports_in_a_row(count: int) -> list[int]:
    """Return consecutive free ports."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            first = int(holder.getsockname()[1])
        ports = list(range(first, first + count))
        with suppress(OSError, OverflowError):
            for port in ports:
                socket.create_server(("127.0.0.1", port)).close()
            return ports


def _ask(port: int, command: bytes) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
            connection.sendall(command)
            return b"".join(iter(lambda: connection.recv(READ_BYTES), b"")).decode()
    except OSError:
        return ""
