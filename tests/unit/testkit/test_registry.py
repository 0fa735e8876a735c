"""The simulated registry fails as an ensemble does: late, in doubt, and by seed. Contract tests are elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from headrace.registry.interface import (
    Create,
    OutcomeUnknown,
    RegistryEntry,
    RegistryOperation,
    RegistryUnavailable,
    SessionLost,
    SessionState,
    Set,
)
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World

TIMEOUT_SECONDS = 6.0
HELD, DOUBTED, LOST = SessionState.HELD, SessionState.DOUBTED, SessionState.LOST


def ensemble(seed: int = 1, *, timeout_seconds: float | None = TIMEOUT_SECONDS) -> SimRegistryEnsemble:
    state = SimRegistryEnsemble(seed)
    state.delay_seconds = (0.001, 0.010)
    state.session_timeout_seconds = timeout_seconds
    return state


def run(main: Coroutine[Any, Any, Any]) -> Any:
    world = World(1)
    try:
        return world.run(main)
    finally:
        world.close()


def now() -> float:
    return asyncio.get_running_loop().time()


def test_by_default_operations_take_no_time_and_sessions_never_end() -> None:
    async def main() -> None:
        registry = SimRegistry()
        states: list[SessionState] = []
        session = await registry.open_session(states.append)
        await registry.commit([Create("/live/1", b"", session)])
        assert now() < 0.001
        await asyncio.sleep(3600)
        await registry.commit([Set("/live/1", b"", 0)])
        assert states == [HELD]

    run(main())


def test_calls_and_watches_of_one_client_are_delayed_and_in_order() -> None:
    async def main() -> None:
        registry = SimRegistry(ensemble())
        heard: list[str] = []
        registry.watch("/n", heard.append)
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(registry.commit([Create(f"/n/{number}", b"")]))
        assert now() > 0.001
        assert list(registry.state.entries) == [f"/n/{number}" for number in range(50)]
        await asyncio.sleep(1)
        assert heard == [f"/n/{number}" for number in range(50)]

    run(main())


def times_of_a_run(seed: int) -> list[float]:
    async def main() -> list[float]:
        state = ensemble(seed)
        state.break_chance = 0.2
        registry = SimRegistry(state)
        times: list[float] = []
        for number in range(50):
            try:
                await registry.commit([Create(f"/{number}", b"")])
            except RegistryUnavailable as error:
                times.append(-len(str(error)))
            times.append(now())
        return times

    times: list[float] = run(main())
    return times


def test_the_same_seed_gives_the_same_run() -> None:
    assert times_of_a_run(7) == times_of_a_run(7)
    assert times_of_a_run(7) != times_of_a_run(8)


def test_ephemeral_keys_of_a_crashed_host_are_removed_when_its_session_times_out() -> None:
    async def main(world: World) -> None:
        state = ensemble()
        crashing, other = SimRegistry(state), SimRegistry(state)
        heard: list[tuple[float, str]] = []
        other.watch("/live", lambda key: heard.append((now(), key)))

        async def live() -> None:
            await crashing.commit([Create("/live/1", b"", await crashing.open_session())])

        host = world.host("broker")
        await host.start(live(), "live")
        await asyncio.sleep(100)
        assert [entry.key for entry in await other.entries("/live")] == ["/live/1"]
        crashed_at = now()
        host.crash()
        crashing.crash()
        await asyncio.sleep(TIMEOUT_SECONDS / 2)
        assert [entry.key for entry in await other.entries("/live")] == ["/live/1"]
        await asyncio.sleep(TIMEOUT_SECONDS)
        assert await other.entries("/live") == []
        assert [key for _, key in heard] == ["/live/1", "/live/1"]
        assert TIMEOUT_SECONDS * 2 / 3 <= heard[-1][0] - crashed_at <= TIMEOUT_SECONDS + 0.1

    world = World(1)
    world.run(main(world))
    world.close()


def test_a_briefly_disconnected_client_is_notified_to_reread_everything() -> None:
    async def main() -> None:
        state = ensemble()
        registry, other = SimRegistry(state), SimRegistry(state)
        states: list[SessionState] = []
        heard: list[str] = []
        session = await registry.open_session(states.append)
        await registry.commit([Create("/live/1", b"", session)])
        registry.watch("/topics", heard.append)
        registry.disconnect()
        await asyncio.sleep(0.1)
        assert states == [HELD, DOUBTED]
        with pytest.raises(RegistryUnavailable):
            await registry.get("/live/1")
        with pytest.raises(RegistryUnavailable):
            await registry.commit([Set("/live/1", b"", 0)])
        await other.commit([Create("/topics/missed", b"")])
        registry.reconnect()
        await asyncio.sleep(0.1)
        assert states == [HELD, DOUBTED, HELD]
        assert heard == ["/topics"]
        await other.commit([Create("/topics/heard", b"")])
        await asyncio.sleep(0.1)
        assert heard == ["/topics", "/topics/heard"]
        await registry.commit([Set("/live/1", b"", 0)])

    run(main())


def test_a_silent_cut_is_noticed_before_the_session_ends_and_its_loss_only_after_reconnecting() -> None:
    async def main() -> None:
        state = ensemble()
        registry, other = SimRegistry(state), SimRegistry(state)
        result: list[tuple[SessionState, float]] = []
        gone: list[float] = []
        session = await registry.open_session(lambda state: result.append((state, now())))
        await registry.commit([Create("/live/1", b"", session), Create("/kept", b"")])
        other.watch("/live/1", lambda _: gone.append(now()))
        cut_at = now()
        registry.disconnect(silently=True)
        with pytest.raises(OutcomeUnknown):
            await registry.commit([Set("/nothing", b"", 0)])
        await asyncio.sleep(60)
        assert [state for state, _ in result] == [HELD, DOUBTED]
        assert TIMEOUT_SECONDS / 3 <= result[1][1] - cut_at <= TIMEOUT_SECONDS * 2 / 3
        assert result[1][1] < gone[0] <= cut_at + TIMEOUT_SECONDS + 0.1
        registry.reconnect()
        await asyncio.sleep(0.1)
        assert [state for state, _ in result] == [HELD, DOUBTED, LOST]
        with pytest.raises(SessionLost):
            await registry.commit([Set("/kept", b"by the dead", 0)])
        again = await registry.open_session()
        await registry.commit([Set("/kept", b"by the living", 0), Create("/live/1", b"", again)])
        assert await other.get("/kept") == RegistryEntry("/kept", b"by the living", 1)

    run(main())


def test_a_client_with_an_expired_session_commits_nothing_even_before_it_learns_of_it() -> None:
    async def main() -> None:
        registry = SimRegistry(ensemble())
        states: list[SessionState] = []
        session = await registry.open_session(states.append)
        await registry.commit([Create("/kept", b"")])
        registry.expire(session)
        assert registry.session_state is HELD
        with pytest.raises(SessionLost):
            await registry.commit([Set("/kept", b"by the dead", 0)])
        await asyncio.sleep(0.1)
        assert states == [HELD, DOUBTED, LOST]
        assert await registry.get("/kept") == RegistryEntry("/kept", b"", 0)

    run(main())


def test_a_host_paused_for_too_long_learns_of_its_expired_session_when_it_resumes() -> None:
    async def main(world: World) -> None:
        state = ensemble()
        paused, other = SimRegistry(state), SimRegistry(state)
        states: list[SessionState] = []
        rejected: list[bool] = []

        async def live() -> None:
            session = await paused.open_session(states.append)
            await paused.commit([Create("/live/1", b"", session), Create("/kept", b"")])
            await asyncio.sleep(10)
            try:
                await paused.commit([Set("/kept", b"by the dead", 0)])
            except (SessionLost, RegistryUnavailable):
                rejected.append(True)

        host = world.host("broker")
        running = host.start(live(), "live")
        await asyncio.sleep(9)
        host.pause(20)
        await asyncio.sleep(19)
        assert await other.get("/live/1") is None
        assert states == [HELD]
        await running
        await asyncio.sleep(1)
        assert rejected == [True]
        assert states == [HELD, DOUBTED, LOST]
        assert await other.get("/kept") == RegistryEntry("/kept", b"", 0)

    world = World(1)
    world.run(main(world))
    world.close()


def test_a_commit_under_which_the_connection_breaks_happened_or_not() -> None:
    async def happened(seed: int) -> bool:
        state = ensemble(seed)
        registry = SimRegistry(state)
        states: list[SessionState] = []
        await registry.open_session(states.append)
        state.break_chance = 1.0
        with pytest.raises(OutcomeUnknown):
            await registry.commit([Create("/a", b"")])
        await asyncio.sleep(0.1)
        assert states == [HELD, DOUBTED, HELD]
        return await registry.get("/a") is not None

    assert {run(happened(seed)) for seed in range(10)} == {True, False}


def test_a_lost_response_leaves_the_outcome_unknown() -> None:
    async def main() -> None:
        state = ensemble()
        state.delay_seconds = (1.0, 1.0)
        registry = SimRegistry(state)
        commit = asyncio.ensure_future(registry.commit([Create("/a", b"")]))
        await asyncio.sleep(1.5)
        registry.disconnect()
        with pytest.raises(OutcomeUnknown):
            await commit
        assert "/a" in state.entries

    run(main())


def test_an_ensemble_that_was_unavailable_for_a_while_is_found_again() -> None:
    async def main() -> None:
        registry = SimRegistry(ensemble())
        states: list[SessionState] = []
        await registry.open_session(states.append)
        registry.unavailable = True
        await asyncio.sleep(TIMEOUT_SECONDS * 0.8)
        assert states == [HELD, DOUBTED]
        registry.unavailable = False
        await asyncio.sleep(TIMEOUT_SECONDS)
        assert states[-1] is not DOUBTED
        assert await registry.get("/a") is None

    run(main())


def test_every_attempt_to_commit_is_seen_with_the_state_of_its_session() -> None:
    async def main() -> None:
        state = ensemble()
        seen: list[tuple[str, SessionState | None]] = []

        def see(_: SimRegistry, operations: Sequence[RegistryOperation], session: SessionState | None) -> None:
            seen.append((operations[0].key, session))

        state.on_commit = see
        registry = SimRegistry(state)
        await registry.commit([Create("/none", b"")])
        session = await registry.open_session()
        await registry.commit([Create("/held", b"")])
        registry.disconnect()
        await asyncio.sleep(0.1)
        with pytest.raises(RegistryUnavailable):
            await registry.commit([Create("/doubted", b"")])
        registry.expire(session)
        registry.reconnect()
        await asyncio.sleep(0.1)
        with pytest.raises(SessionLost):
            await registry.commit([Create("/lost", b"")])
        assert seen == [("/none", None), ("/held", HELD), ("/doubted", DOUBTED), ("/lost", LOST)]

    run(main())


@pytest.mark.parametrize("delay_seconds", [(0.0, 0.0), (0.001, 0.010)])
def test_tasks_started_by_a_watch_belong_to_the_host_that_set_it(delay_seconds: tuple[float, float]) -> None:
    async def main(world: World) -> None:
        state = ensemble(timeout_seconds=None)
        state.delay_seconds = delay_seconds
        watching, other = SimRegistry(state), SimRegistry(state)
        begun: list[str] = []
        ended: list[str] = []

        async def follow(key: str) -> None:
            begun.append(key)
            await asyncio.sleep(10)
            ended.append(key)

        async def watch() -> None:
            loop = asyncio.get_running_loop()
            watching.watch("/a", lambda key: keep.append(loop.create_task(follow(key))))

        keep: list[asyncio.Task[None]] = []
        host = world.host("broker")
        await host.start(watch(), "watch")
        await other.commit([Create("/a/1", b"")])
        await asyncio.sleep(1)
        assert begun == ["/a/1"]
        host.crash()
        await other.commit([Create("/a/2", b"")])
        await asyncio.sleep(60)
        assert begun == ["/a/1"]
        assert ended == []

    world = World(1)
    world.run(main(world))
    world.close()


def test_a_lagging_server_returns_old_values_but_includes_commits_of_its_own_client() -> None:
    async def main() -> None:
        state = ensemble(timeout_seconds=None)
        writer, reader = SimRegistry(state), SimRegistry(state)
        reader.behind_seconds = 5.0
        await writer.commit([Create("/a", b"")])
        assert await reader.get("/a") is None
        await reader.commit([Create("/b", b"")])
        assert await reader.get("/a") is not None, "it was committed before"
        await writer.commit([Create("/c", b"")])
        assert await reader.get("/c") is None
        await asyncio.sleep(5.1)
        assert await reader.get("/c") is not None

    run(main())


def test_watch_events_of_one_commit_may_arrive_separately() -> None:
    async def main() -> None:
        state = ensemble(timeout_seconds=None)
        state.split_seconds = 1.0
        writer, watcher = SimRegistry(state), SimRegistry(state)
        heard: list[float] = []
        watcher.watch("/t", lambda _key: heard.append(now()))
        await writer.commit([Create(f"/t/{number}", b"") for number in range(10)])
        await asyncio.sleep(20)
        assert len(heard) == 10
        assert heard[-1] - heard[0] > 1.0

    run(main())


def test_a_session_is_valid_for_two_thirds_of_its_timeout_after_the_last_ping_that_arrived() -> None:
    async def main() -> None:
        registry = SimRegistry(ensemble())
        await registry.open_session()
        await asyncio.sleep(10 * TIMEOUT_SECONDS)
        assert registry.session_valid_until > now()
        registry.disconnect(silently=True)
        until = registry.session_valid_until
        await asyncio.sleep(TIMEOUT_SECONDS)
        assert until == registry.session_valid_until < now()

    run(main())


def test_a_resumed_process_runs_before_its_client_notices_the_expired_session() -> None:
    world = World(seed=1)
    state = SimRegistryEnsemble(1)
    state.session_timeout_seconds = TIMEOUT_SECONDS
    state.delay_seconds = (0.0001, 0.003)
    host = world.host("paused")
    registry = SimRegistry(state)
    states: list[SessionState] = []

    async def wake_up() -> tuple[bool, bool]:
        return registry.has_missed_the_end, now() < registry.session_valid_until

    async def main() -> None:
        await host.start(registry.open_session(states.append), "open")
        host.pause(3 * TIMEOUT_SECONDS)
        assert await host.start(wake_up(), "buffered request") == (True, False)
        assert states == [HELD]
        await asyncio.sleep(1)
        assert states == [HELD, DOUBTED, LOST]

    world.run(main())
    world.close()
