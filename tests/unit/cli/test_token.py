"""`headrace token`, against a broker in virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.unit.client.simulated_server import client, start_broker

from headrace.cli.main import main
from headrace.client.admin.tokens import check_tokens
from headrace.client.cluster import Cluster
from headrace.model.tokens import Scope, hash_secret, parse_token
from headrace.testkit.world import World

Run = Callable[..., int]


@pytest.fixture
def world() -> Iterator[World]:
    world = World(seed=1)
    world.run(start_broker(world))
    yield world
    world.close()


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    def with_cluster(_server: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            async with client(world) as cluster:
                return await work(cluster)

        return world.run(scenario())

    monkeypatch.setattr("headrace.cli.token.with_cluster", with_cluster)
    return lambda *arguments: main(["token", *arguments])


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_token_is_printed_once_and_grants_its_scopes(
    run: Run, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("create", "ci", "-s", "publish:orders", "-s", "read:*", "--expires", "30d", "--rate", "5") == 0
    (made,) = rows(capsys)
    token_id, secret = parse_token(made["token"]) or ("", "")
    assert made["id"] == token_id
    assert made["scopes"] == ["publish:orders", "read:*"]

    async def check() -> None:
        async with client(world) as cluster:
            (grant,) = await check_tokens(cluster, [(token_id, hash_secret(secret))])
        assert grant is not None
        assert grant.scopes == (Scope("publish", "orders"), Scope("read", "*"))
        assert (grant.requests_per_second, grant.burst) == (5, 5)

    world.run(check())
    assert run("list") == 0
    (listed,) = rows(capsys)
    assert secret not in json.dumps(listed)
    assert listed["id"] == token_id
    assert listed["expires_at"] == made["expires_at"]
    assert listed["rate"] == 5
    assert listed["expired"] is False


def test_on_a_terminal_the_token_is_printed_on_its_own_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("create", "ci", "-s", "manage:*", "-o", "table") == 0
    captured = capsys.readouterr()
    assert parse_token(captured.out.strip()) is not None
    assert "cannot be displayed again" in captured.err
    assert captured.out.strip() not in captured.err


def test_a_revoked_token_is_removed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("create", "ci", "-s", "manage:*")
    (made,) = rows(capsys)
    assert run("revoke", made["id"], "--yes") == 0
    assert run("list") == 0
    assert rows(capsys) == []
    assert run("revoke", made["id"], "-y") == 1
    assert "headrace token list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("create", "ci"), 2, "--scope"),
        (("create", "ci", "-s", "write:orders"), 2, "is not a scope"),
        (("create", "ci", "-s", "read:*", "--burst", "5"), 2, "--burst requires --rate"),
        (("create", "", "-s", "read:*"), 1, "the name of a token"),
        (("revoke", "x"), 2, "Use --yes"),
    ],
)
def test_invalid_options_are_a_one_line_error(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    assert run(*arguments) == exit_code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
