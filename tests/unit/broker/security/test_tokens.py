"""Tokens are stored by hash, checked by id and hash, seen by every broker, and unusable once revoked."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.security.tokens import token_key
from headrace.model.errors import InvalidRequest
from headrace.model.tokens import hash_secret
from headrace.registry.interface import Create
from headrace.wire.messages.tokens import (
    AlterTokensRequest,
    AlterTokensResponse,
    CheckedToken,
    CheckTokenRequest,
    CheckTokenResponse,
    ListTokensRequest,
    ListTokensResponse,
    NewToken,
    PresentedToken,
)

HASH = hash_secret("secret")
NEW: dict[str, Any] = {"token_id": "a1", "hash": HASH, "name": "ci", "scopes": ["publish:orders", "read:*"]}


def new(**others: Any) -> NewToken:
    return NewToken(**{**NEW, **others})


async def alter(
    simulated_broker: SimulatedBroker, *create: NewToken, revoke: tuple[str, ...] = ()
) -> AlterTokensResponse:
    response: AlterTokensResponse = await simulated_broker.send(
        AlterTokensRequest(create=[*create], revoke=[*revoke]), 0
    )
    return response


async def check(simulated_broker: SimulatedBroker, token_id: str = "a1", digest: bytes = HASH) -> CheckedToken:
    request = CheckTokenRequest(tokens=[PresentedToken(token_id=token_id, hash=digest)])
    response: CheckTokenResponse = await simulated_broker.send(request, 0)
    assert response.error_code == 0
    (token,) = response.tokens
    return token


async def listed(simulated_broker: SimulatedBroker) -> ListTokensResponse:
    response: ListTokensResponse = await simulated_broker.send(ListTokensRequest(), 0)
    assert response.error_code == 0
    return response


async def test_a_token_is_known_by_its_id_and_its_hash(simulated_broker: SimulatedBroker) -> None:
    limited = new(expires_ms=1234, requests_per_second=5, burst=10)
    assert (await alter(simulated_broker, limited)).error_code == 0
    token = await check(simulated_broker)
    assert token == CheckedToken(
        token_id="a1",
        is_known=True,
        name="ci",
        scopes=["publish:orders", "read:*"],
        expires_ms=1234,
        requests_per_second=5,
        burst=10,
    )
    assert await check(simulated_broker, digest=hash_secret("other")) == CheckedToken(token_id="a1")
    assert await check(simulated_broker, token_id="b2") == CheckedToken(token_id="b2")
    assert await check(simulated_broker, token_id="b2", digest=bytes(32)) == CheckedToken(token_id="b2")
    assert await check(simulated_broker, digest=b"") == CheckedToken(token_id="a1")


async def test_a_list_shows_everything_except_the_hash_of_a_token(simulated_broker: SimulatedBroker) -> None:
    await alter(simulated_broker, new())
    response = await listed(simulated_broker)
    (token,) = response.tokens
    assert (token.token_id, token.name, token.scopes) == ("a1", "ci", ["publish:orders", "read:*"])
    assert (token.expires_ms, token.requests_per_second) == (-1, -1)
    assert token.created_ms == simulated_broker.host.clock.now_ms()
    assert not any(isinstance(value, bytes) for value in vars_of(token))


def vars_of(token: object) -> list[object]:
    return [getattr(token, name) for name in token.__struct_fields__]  # type: ignore[attr-defined]


async def test_a_token_that_is_revoked_is_unknown_at_once(simulated_broker: SimulatedBroker) -> None:
    await alter(simulated_broker, new())
    assert (await alter(simulated_broker, revoke=("a1", "b2", "no id"))).revoked == ["a1"]
    assert not (await check(simulated_broker)).is_known
    assert (await listed(simulated_broker)).tokens == []
    assert (await alter(simulated_broker, revoke=("a1",))).revoked == []


async def test_an_id_is_used_once_but_the_same_request_may_be_repeated(simulated_broker: SimulatedBroker) -> None:
    assert (await alter(simulated_broker, new())).error_code == 0
    assert (await alter(simulated_broker, new())).error_code == 0
    assert (await alter(simulated_broker, new(hash=hash_secret("other")))).error_code == InvalidRequest.code
    assert (await check(simulated_broker)).is_known


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_id": "a/b"},
        {"token_id": ""},
        {"hash": b"short"},
        {"name": ""},
        {"name": "x" * 101},
        {"name": "a\nb"},
        {"scopes": []},
        {"scopes": ["publish:*"] * 65},
        {"scopes": ["write:orders"]},
        {"requests_per_second": 0},
        {"burst": 0},
    ],
    ids=str,
)
async def test_an_invalid_token_is_rejected_with_the_reason_and_not_stored(
    simulated_broker: SimulatedBroker, wrong: dict[str, Any]
) -> None:
    response = await alter(simulated_broker, new(token_id="good"), new(**wrong))
    assert response.error_code == InvalidRequest.code
    assert response.error_message
    assert (await listed(simulated_broker)).tokens == []


async def test_tokens_survive_a_restart(simulated_broker: SimulatedBroker) -> None:
    await alter(simulated_broker, new())
    await simulated_broker.restart()
    assert (await check(simulated_broker)).is_known


async def test_an_unreadable_token_record_is_logged_and_authenticates_no_client(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.host.start(simulated_broker.registry.commit([Create(token_key("a1"), b"{")]), "commit")
    await simulated_broker.pass_time(1)
    request = CheckTokenRequest(tokens=[PresentedToken(token_id="a1", hash=HASH)])
    response: CheckTokenResponse = await simulated_broker.send(request, 0)
    assert response.error_code != 0
    assert not response.tokens
    assert (await simulated_broker.send(ListTokensRequest(), 0)).error_code != 0


@in_simulated_cluster(2)
async def test_changes_at_one_broker_are_seen_by_the_others(simulated_cluster: SimulatedCluster) -> None:
    one, two = simulated_cluster[1], simulated_cluster[2]
    await alter(one, new())
    await simulated_cluster.wait_until(lambda: two.broker.catalogue.mirror.get(token_key("a1")) is not None)
    assert (await check(two)).is_known
    await alter(two, revoke=("a1",))
    await simulated_cluster.wait_until(lambda: one.broker.catalogue.mirror.get(token_key("a1")) is None)
    assert not (await check(one)).is_known
