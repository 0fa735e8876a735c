"""The registry on a real ZooKeeper: the contract, lost sessions, failing servers; and `headrace zookeeper`."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.integration.conftest import Figures
from tests.integration.ensemble import Cable, ZooKeeperProcess
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until
from tests.unit.registry.contract import Opened, RegistryContract

from headrace.registry.interface import (
    Check,
    CommitTooLarge,
    Create,
    Delete,
    OutcomeUnknown,
    Registry,
    RegistryConflict,
    RegistryEntry,
    RegistryOperation,
    RegistryUnavailable,
    SessionLost,
    SessionState,
    Set,
)
from headrace.registry.zookeeper import ZooKeeperRegistry
from headrace.runtime.clock import SystemClock
from headrace.testkit.registry import SimRegistry

SESSION_SECONDS = 2.0
HELD, DOUBTED, LOST = SessionState.HELD, SessionState.DOUBTED, SessionState.LOST

_roots = itertools.count()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """One server for the module. A test that pauses it must resume it."""
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    yield process.start()
    process.stop()


@pytest.fixture
def start_zookeeper(tmp_path: Path) -> Iterator[Callable[[int], ZooKeeperProcess]]:
    """An ensemble for one test."""
    started: list[ZooKeeperProcess] = []

    def start(nodes: int) -> ZooKeeperProcess:
        started.append(ZooKeeperProcess(tmp_path / f"zookeeper-{len(started)}", nodes))
        return started[-1].start()

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def root() -> str:
    return f"/test/{next(_roots)}"


@asynccontextmanager
async def connect(hosts: str, root: str, seconds: float = SESSION_SECONDS) -> AsyncIterator[ZooKeeperRegistry]:
    registry = await ZooKeeperRegistry.open(hosts, root, SystemClock(), seconds)
    try:
        yield registry
    finally:
        await registry.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def committed(registry: Registry, operations: Sequence[RegistryOperation]) -> None:
    """Commit, and retry while there is no connection."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await registry.commit(operations)
            except OutcomeUnknown:
                raise
            except RegistryUnavailable:
                await asyncio.sleep(0.005)


class TestContract(RegistryContract):
    @pytest.fixture
    def opened(self, zookeeper: ZooKeeperProcess, root: str) -> Opened:
        return connect(zookeeper.hosts, root)


KEYS = st.sampled_from(["/a", "/b", "/a/c", "/a/c/d"])
VERSIONS = st.integers(0, 1)
OPERATIONS = st.one_of(
    st.builds(Check, KEYS, VERSIONS),
    st.builds(Create, KEYS, st.binary(max_size=2)),
    st.builds(Set, KEYS, st.binary(max_size=2), VERSIONS),
    st.builds(Delete, KEYS, VERSIONS),
)


@settings(max_examples=60)
@given(commits=st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), max_size=10))
def test_zookeeper_and_the_simulation_behave_the_same(
    zookeeper: ZooKeeperProcess, commits: Sequence[Sequence[RegistryOperation]]
) -> None:
    async def outcome(registry: Registry, operations: Sequence[RegistryOperation]) -> type | None:
        try:
            await registry.commit(operations)
        except RegistryConflict as conflict:
            return type(conflict)
        return None

    async def compare() -> None:
        simulation = SimRegistry()
        heard: list[str] = []
        expected: list[str] = []
        simulation.watch("/a", expected.append)
        async with connect(zookeeper.hosts, f"/test/{next(_roots)}") as real:
            real.watch("/a", heard.append)
            for operations in commits:
                assert await outcome(real, operations) == await outcome(simulation, operations)
            for prefix in ("/a", "/a/c"):
                assert await real.entries(prefix) == await simulation.entries(prefix)
                assert await real.get(prefix) == await simulation.get(prefix)
            await until(lambda: len(heard) >= len(expected))
            assert heard == expected

    asyncio.run(compare())


async def test_a_disconnected_session_is_uncertain_then_expired_and_lost_on_reconnect(
    zookeeper: ZooKeeperProcess, root: str
) -> None:
    states: list[SessionState] = []
    heard: list[str] = []
    async with (
        Cable(zookeeper.ports[0]) as cable,
        connect(zookeeper.hosts, root) as other,
        connect(cable.address, root) as registry,
    ):
        session = await registry.open_session(states.append)
        other.watch("/live", heard.append)
        await registry.commit([Create("/live/1", b"first", session), Create("/kept", b"")])
        await until(lambda: heard == ["/live/1"])
        cable.muffle()
        await until(lambda: DOUBTED in states)
        await until(lambda: heard == ["/live/1", "/live/1"])
        assert await other.get("/live/1") is None
        assert states == [HELD, DOUBTED]
        with pytest.raises(RegistryUnavailable):
            await registry.commit([Set("/kept", b"by the dead", 0)])
        cable.mend()
        await until(lambda: LOST in states)
        with pytest.raises(SessionLost):
            await registry.commit([Set("/kept", b"by the dead", 0)])
        again = await registry.open_session(states.append)
        await registry.commit([Create("/live/1", b"second", again), Set("/kept", b"by the living", 0)])
        assert states == [HELD, DOUBTED, LOST, HELD]
        assert await other.get("/live/1") == RegistryEntry("/live/1", b"second", 0)
        assert await other.get("/kept") == RegistryEntry("/kept", b"by the living", 1)


async def test_commits_of_a_lost_session_fail_after_a_reconnect(zookeeper: ZooKeeperProcess, root: str) -> None:
    """Kazoo has begun a new session before the loop was notified of the loss of the previous one."""
    states: list[SessionState] = []
    async with Cable(zookeeper.ports[0]) as cable, connect(cable.address, root) as registry:
        await registry.open_session(states.append)
        await registry.commit([Create("/kept", b"")])
        held = registry._held
        assert held is not None
        cable.muffle()
        await until(lambda: DOUBTED in states)
        async with connect(zookeeper.hosts, root) as other:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await other._connection.owner(held.path) is not None:
                    await asyncio.sleep(0.01)
        cable.mend()
        await until(lambda: LOST in states)
        assert await registry.get("/kept") == RegistryEntry("/kept", b"", 0)
        registry._held, registry._is_over = held, False
        for operations in ([Set("/kept", b"by the dead", 0)], [Create("/live/1", b"", held.session)]):
            with pytest.raises(SessionLost):
                await registry.commit(operations)
        assert await registry.get("/kept") == RegistryEntry("/kept", b"", 0)
        assert await registry.get("/live/1") is None


async def test_a_session_is_valid_as_long_as_servers_confirm_heartbeats(zookeeper: ZooKeeperProcess, root: str) -> None:
    states: list[SessionState] = []
    async with Cable(zookeeper.ports[0]) as cable, connect(cable.address, root) as registry:
        await registry.open_session(states.append)
        first = registry.session_valid_until
        assert time.monotonic() < first <= time.monotonic() + SESSION_SECONDS
        await until(lambda: registry.session_valid_until > first)  # by a ping: nothing else is sent
        for _ in range(3):  # and by requests: kazoo does not ping while it sends them
            before = registry.session_valid_until
            await registry.get("/nothing")
            assert registry.session_valid_until > before
        cable.muffle()
        await until(lambda: time.monotonic() > registry.session_valid_until)
        assert LOST not in states


async def test_a_new_session_of_kazoo_does_not_revive_the_lost_one(zookeeper: ZooKeeperProcess, root: str) -> None:
    """After a pause, kazoo's thread may run before the loop is notified of the end of the session."""
    states: list[SessionState] = []
    async with Cable(zookeeper.ports[0]) as cable, connect(cable.address, root) as registry:
        await registry.open_session(states.append)
        held = registry._held
        assert held is not None
        cable.muffle()
        await until(lambda: time.monotonic() > registry.session_valid_until + SESSION_SECONDS)
        cable.mend()
        await until(lambda: LOST in states)
        await registry.get("/nothing")
        registry._held = held
        assert registry.session_valid_until == float("-inf")
        registry._held = None


async def test_a_short_disconnect_keeps_the_session_and_notifies_watches(
    zookeeper: ZooKeeperProcess, root: str
) -> None:
    states: list[SessionState] = []
    heard: list[str] = []
    async with (
        Cable(zookeeper.ports[0]) as cable,
        connect(zookeeper.hosts, root) as other,
        connect(cable.address, root, 10.0) as registry,
    ):
        session = await registry.open_session(states.append)
        await registry.commit([Create("/live/1", b"", session)])
        registry.watch("/topics", heard.append)
        cable.tear()
        await until(lambda: states == [HELD, DOUBTED])
        await other.commit([Create("/topics/missed", b"")])
        cable.mend()
        await until(lambda: "/topics" in heard)
        assert states == [HELD, DOUBTED, HELD]
        assert await registry.get("/topics/missed") == RegistryEntry("/topics/missed", b"", 0)
        await other.commit([Create("/topics/heard", b"")])
        await until(lambda: heard[-1] == "/topics/heard")
        await registry.commit([Set("/live/1", b"still here", 0)])


async def test_reads_and_commits_on_a_paused_server_time_out(zookeeper: ZooKeeperProcess, root: str) -> None:
    states: list[SessionState] = []
    async with connect(zookeeper.hosts, root) as registry:
        await registry.open_session(states.append)
        await registry.commit([Create("/a", b"")])
        zookeeper.send(1, signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknown):
                await registry.commit([Set("/a", b"x", 0)])
            assert states == [HELD, DOUBTED]
            with pytest.raises(RegistryUnavailable):
                await registry.get("/a")
            with pytest.raises(RegistryUnavailable):
                await registry.commit([Set("/a", b"x", 0)])
        finally:
            zookeeper.send(1, signal.SIGCONT)
        await until(lambda: states[-1] is not DOUBTED)
        entry = await registry.get("/a")
        assert entry in (RegistryEntry("/a", b"", 0), RegistryEntry("/a", b"x", 1))


async def test_an_ensemble_survives_the_loss_of_its_leader(
    start_zookeeper: Callable[[int], ZooKeeperProcess], figures: Figures, root: str
) -> None:
    zookeeper = await asyncio.to_thread(start_zookeeper, 3)
    states: list[SessionState] = []
    heard: list[str] = []
    async with connect(zookeeper.hosts, root, 10.0) as registry:
        session = await registry.open_session(states.append)
        await registry.commit([Create("/live/1", b"", session)])
        registry.watch("/keys", heard.append)
        acknowledged: list[str] = []
        for number in range(50):
            await registry.commit([Create(f"/keys/{number}", b"")])
            acknowledged.append(str(number))
        leader = zookeeper.leader()
        zookeeper.send(leader, signal.SIGKILL)
        began = time.monotonic()
        try:
            await committed(registry, [Create("/keys/after", b"")])
        except OutcomeUnknown:
            await committed(registry, [Create("/keys/later", b"")])
        figures.add(f"{time.monotonic() - began:.2f} s from the end of the leader to the next commit")
        assert set(acknowledged) <= {entry.key.removeprefix("/keys/") for entry in await registry.entries("/keys")}
        assert await registry.get("/live/1") == RegistryEntry("/live/1", b"", 0)
        assert states[-1] is HELD
        assert LOST not in states
        assert (DOUBTED in states) == ("/keys" in heard)
    assert f"node {leader} exited, status=-9" in zookeeper.errors()
    assert zookeeper.process.poll() is None
    assert zookeeper.terminate() == 0


async def test_a_read_after_a_conflict_syncs_first(
    zookeeper: ZooKeeperProcess, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(zookeeper.hosts, root) as registry:
        client = registry._connection._client
        sync, synced = client.sync_async, []

        def count(path: str) -> Any:
            synced.append(path)
            return sync(path)

        monkeypatch.setattr(client, "sync_async", count)
        await registry.get("/a")
        await registry.get("/a")
        assert len(synced) == 1
        with pytest.raises(RegistryConflict):
            await registry.commit([Set("/a", b"", 0)])
        await registry.get("/a")
        await registry.get("/a")
        assert len(synced) == 2


async def test_a_commit_that_is_too_large_fails_and_the_next_one_succeeds(
    zookeeper: ZooKeeperProcess, root: str
) -> None:
    async with connect(zookeeper.hosts, root) as registry:
        with pytest.raises(CommitTooLarge, match="too large for ZooKeeper"):
            await registry.commit([Create("/a", b"x" * 1_100_000)])
        await registry.commit([Create("/a", b"x" * 990_000)])
        await registry.commit([Create(f"/many/{number}", b"x" * 1500) for number in range(500)])
        assert len(await registry.entries("/many")) == 500


async def test_a_deletion_leaves_no_empty_parent_nodes(zookeeper: ZooKeeperProcess, root: str) -> None:
    async with connect(zookeeper.hosts, root) as registry:
        await registry.commit([Create("/partitions/t1/0", b""), Create("/partitions/t1/1", b"")])
        await registry.commit([Delete("/partitions/t1/0", 0)])
        await registry.commit([Delete("/partitions/t1/1", 0)])
        await registry.get("/partitions")
        assert await registry._walk("/partitions") == ([f"{root}/keys/partitions"], [])
        await registry.commit([Create("/partitions/t1/0", b"again")])
        assert await registry.get("/partitions/t1/0") == RegistryEntry("/partitions/t1/0", b"again", 0)


async def test_the_session_timeout_is_negotiated(zookeeper: ZooKeeperProcess, root: str) -> None:
    async with connect(zookeeper.hosts, root, 0.2) as registry:
        assert registry.session_timeout_seconds == pytest.approx(1.0)
    async with connect(zookeeper.hosts, root, 7.0) as registry:
        assert registry.session_timeout_seconds == pytest.approx(7.0)


async def test_opening_without_a_server_times_out() -> None:
    with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:1 is not reachable"):
        await ZooKeeperRegistry.open("127.0.0.1:1", "/test", SystemClock(), 0.5)


async def test_thousands_of_keys_are_read_and_watched(zookeeper: ZooKeeperProcess, figures: Figures, root: str) -> None:
    async with connect(zookeeper.hosts, root) as registry, connect(zookeeper.hosts, root) as other:
        began = time.monotonic()
        keys = [f"/partitions/{number // 50:032x}/{number % 50}" for number in range(5000)]
        for start in range(0, len(keys), 500):
            await other.commit([Create(key, b"x" * 200) for key in keys[start : start + 500]])
        written = time.monotonic()
        assert [entry.key for entry in await registry.entries("/partitions")] == sorted(keys)
        read = time.monotonic()
        heard: dict[str, float] = {}

        def hear(key: str) -> None:
            heard[key] = time.monotonic()

        registry.watch("/partitions", hear)
        waits = []
        for key in keys[::500]:
            set_at = time.monotonic()
            await other.commit([Set(key, b"y", 0)])
            await until(lambda key=key: key in heard)  # type: ignore[misc]
            waits.append(heard[key] - set_at)
        figures.add(
            f"5,000 keys: written in {written - began:.2f} s, read in {read - written:.2f} s, "
            f"a change heard after {1000 * sorted(waits)[len(waits) // 2]:.1f} ms (median)"
        )


def test_commits_survive_a_restart(start_zookeeper: Callable[[int], ZooKeeperProcess], root: str) -> None:
    zookeeper = start_zookeeper(3)

    async def write() -> None:
        async with connect(zookeeper.hosts, root) as registry:
            await registry.commit([Create("/a", b"kept")])

    async def read() -> None:
        async with connect(zookeeper.hosts, root) as registry:
            assert await registry.get("/a") == RegistryEntry("/a", b"kept", 0)

    asyncio.run(write())
    pids = [zookeeper.pid(number) for number in (1, 2, 3)]
    assert zookeeper.terminate() == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    zookeeper.start()
    asyncio.run(read())


def test_the_command_fails_and_names_the_server_that_stopped(
    start_zookeeper: Callable[[int], ZooKeeperProcess],
) -> None:
    zookeeper = start_zookeeper(1)
    zookeeper.send(1, signal.SIGKILL)
    assert zookeeper.process.wait(PATIENCE_SECONDS) == 1
    assert "error: ZooKeeper node 1 exited, status=-9; see" in zookeeper.errors()


def test_leftover_servers_keep_their_data_folder(start_zookeeper: Callable[[int], ZooKeeperProcess]) -> None:
    zookeeper = start_zookeeper(1)
    orphan = zookeeper.pid(1)
    zookeeper.process.kill()
    zookeeper.process.wait(PATIENCE_SECONDS)
    refused = subprocess.run(
        [str(Path(sys.executable).with_name("headrace")), "zookeeper", "--data", str(zookeeper.data)],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert refused.returncode == 1
    assert b"is in use by another" in refused.stderr
    os.kill(orphan, signal.SIGKILL)

    def free_again() -> bool:
        try:
            os.kill(orphan, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(free_again, "the orphan is gone")
    zookeeper.start()


def test_a_registry_that_is_down_is_reported_by_health_doctor_and_readiness(
    start_zookeeper: Callable[[int], ZooKeeperProcess], tmp_path: Path
) -> None:
    zookeeper = start_zookeeper(1)
    options = ("--registry", f"zookeeper://{zookeeper.hosts}/headrace", "--session-timeout", "2")
    broker = BrokerProcess(tmp_path / "broker", options=options).start()

    def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("headrace"))
        command = [program, *arguments, "--server", broker.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    try:
        assert headrace("cluster", "health").returncode == 0
        zookeeper.send(1, signal.SIGSTOP)
        wait_until(lambda: headrace("cluster", "health").returncode == 1, "the broker notices")
        assert '"problem":"no registry","subject":"broker 1"' in headrace("cluster", "health").stdout
        doctor = headrace("doctor", "--data", str(broker.data))
        assert doctor.returncode == 1
        assert '"verdict":"fail","subject":"broker 1","what":"cannot reach the registry' in doctor.stdout
        with pytest.raises(HTTPError) as raised:
            urlopen(f"http://127.0.0.1:{broker.http_port}/readyz")
        assert b"[-] registry" in raised.value.read()
        zookeeper.send(1, signal.SIGCONT)
        wait_until(lambda: headrace("cluster", "health").returncode == 0, "the broker is back")
    finally:
        broker.kill()
