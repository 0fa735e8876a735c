"""Tokens through a client: they are created, listed, checked and revoked, and their secrets are never sent."""

from __future__ import annotations

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster
from tests.unit.client.scripted_cluster import in_world as in_scripted_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.tokens import TokenAdmin, check_tokens
from headrace.client.errors import MalformedResponse
from headrace.model.tokens import SECRET_BYTES, InvalidScope, Scope, hash_secret, parse_token
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.tokens import AlterTokensRequest, AlterTokensResponse, CheckedToken, CheckTokenResponse


def test_a_token_is_created_used_and_revoked() -> None:
    async def scenario() -> None:
        await start_broker(world)
        async with client(world) as cluster:
            tokens = TokenAdmin(cluster)
            token_id, text = await tokens.create("ci", ["publish:orders"], expires_ms=99, requests_per_second=7)
            parsed = parse_token(text)
            assert parsed is not None
            assert parsed[0] == token_id
            assert len(parsed[1]) >= SECRET_BYTES * 8 // 6
            presented = (token_id, hash_secret(parsed[1]))
            grant, nobody = await check_tokens(cluster, [presented, (token_id, hash_secret("guess"))])
            assert nobody is None
            assert grant is not None
            assert grant.scopes == (Scope("publish", "orders"),)
            assert (grant.name, grant.expires_ms, grant.requests_per_second, grant.burst) == ("ci", 99, 7, 7)
            (view,) = await tokens.list()
            assert (view.id, view.name, view.scopes) == (token_id, "ci", ("publish:orders",))
            assert await tokens.revoke([token_id, "nobody"]) == [token_id]
            assert await check_tokens(cluster, [presented]) == [None]
            assert await tokens.list() == []

    world = World(seed=1)
    world.run(scenario())
    world.close()


def test_the_secret_is_not_sent_and_no_two_are_the_same() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.script(apis.ALTER_TOKENS, Fault.CLOSE, *[AlterTokensResponse()] * 2)
        async with scripted_cluster.cluster() as cluster:
            made = {(await TokenAdmin(cluster).create("ci", ["read:*"]))[1] for _ in range(2)}
        assert len(made) == 2
        sent = [request for key, _, request in broker.requests if key == apis.ALTER_TOKENS]
        assert len(sent) == 3
        for request in sent:
            assert isinstance(request, AlterTokensRequest)
            for text in made:
                _, secret = parse_token(text) or ("", "")
                assert secret
                assert secret not in repr(request)

    in_scripted_world(scenario)


def test_an_invalid_scope_is_rejected_before_sending() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(InvalidScope):
                await TokenAdmin(cluster).create("ci", ["write:orders"])
        assert broker.count(apis.ALTER_TOKENS) == 0

    in_scripted_world(scenario)


def test_a_scope_of_a_newer_broker_allows_nothing_here() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        result = CheckedToken(token_id="a", is_known=True, name="ci", scopes=["fly:*", "read:orders"])
        broker.script(apis.CHECK_TOKEN, CheckTokenResponse(tokens=[result]), CheckTokenResponse())
        async with scripted_cluster.cluster() as cluster:
            (grant,) = await check_tokens(cluster, [("a", b"")])
            assert grant is not None
            assert grant.scopes == (Scope("read", "orders"),)
            with pytest.raises(MalformedResponse):
                await check_tokens(cluster, [("a", b"")])

    in_scripted_world(scenario)
