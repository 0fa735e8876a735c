"""Authorization: missing and invalid tokens, scopes, rates, and the cache of verified tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker, ScriptedCluster, in_world

from headrace.client.errors import Unreachable
from headrace.http.message import Request
from headrace.http.problems import Problem
from headrace.http.routes import Verb
from headrace.model.errors import HeadraceError
from headrace.model.tokens import Scope, hash_secret, write_token
from headrace.protocols.rest import authorization as access
from headrace.protocols.rest import authorization as token_checks
from headrace.protocols.rest.authorization import ANONYMOUS, AllowAllAuthorizer, Principal, TokenAuthorizer
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.tokens import CheckedToken, CheckTokenRequest, CheckTokenResponse

SECRET = "s3cret" * 7
TOKEN = write_token("a1", SECRET)

Scenario = Callable[[World, TokenAuthorizer, "TokenServer"], Awaitable[None]]


class TokenServer:
    """A broker that knows these tokens."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.tokens = {("a1", hash_secret(SECRET)): CheckedToken(token_id="a1", is_known=True, name="ci")}
        self.sizes: list[int] = []
        self.is_silent = False
        broker.script(apis.CHECK_TOKEN, *[self.check] * 500)

    def check(self, request: CheckTokenRequest) -> CheckTokenResponse | Fault:
        if self.is_silent:
            return Fault.CLOSE
        self.sizes.append(len(request.tokens))
        response = [
            self.tokens.get((token.token_id, bytes(token.hash)), CheckedToken(token_id=token.token_id))
            for token in request.tokens
        ]
        return CheckTokenResponse(tokens=response)

    def grant(self, **terms: Any) -> None:
        self.tokens["a1", hash_secret(SECRET)] = CheckedToken(token_id="a1", is_known=True, name="ci", **terms)

    @property
    def requested(self) -> int:
        return self.broker.count(apis.CHECK_TOKEN)


def with_token_server(scenario: Scenario) -> None:
    async def play(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        token_server = TokenServer(await scripted_cluster.broker())
        async with scripted_cluster.cluster() as cluster:
            await scenario(world, TokenAuthorizer(cluster, world.clock), token_server)

    in_world(play)


def request(authorization: str | None = f"Bearer {TOKEN}") -> Request:
    headers = {} if authorization is None else {"authorization": authorization}
    return Request("GET", "/topics", {}, headers, b"", "peer", "r1")


async def refused(authorizer: TokenAuthorizer, presented: Request) -> Problem:
    with pytest.raises(Problem) as raised:
        await authorizer.authenticate(presented)
    return raised.value


def test_without_authentication_every_operation_is_allowed() -> None:
    async def scenario(_: World) -> None:
        authorizer = AllowAllAuthorizer()
        caller = await authorizer.authenticate(request(None))
        for verb in Verb:
            caller.require(verb, None)
            caller.require(verb, "__consumer_offsets")

    in_world(scenario)


@pytest.mark.parametrize("authorization", [None, "", "Basic YTpi", "Bearer", "Bearer ", "Bearer x", "Bearer hr_a1_"])
def test_a_request_without_a_token_is_a_401(authorization: str | None) -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        problem = await refused(authorizer, request(authorization))
        assert problem.status == 401
        assert problem.code in ("token_missing", "token_malformed")
        ((name, challenge),) = problem.headers
        assert name == "www-authenticate"
        assert challenge.startswith("Bearer ")
        assert "headrace token create" in problem.next_step
        assert token_server.requested == 0

    with_token_server(scenario)


def test_a_token_identifies_the_caller_and_is_verified_once() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        token_server.grant(scopes=["publish:orders"])
        for scheme in ("Bearer", "bearer", "BEARER"):
            caller = await authorizer.authenticate(request(f"{scheme} {TOKEN}"))
            assert caller == Principal("ci", "a1", (Scope("publish", "orders"),))
        assert token_server.requested == 1

    with_token_server(scenario)


def test_a_wrong_secret_is_rejected_without_revealing_either_one() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, _token_server: TokenServer) -> None:
        problem = await refused(authorizer, request(f"Bearer {write_token('a1', 'guess')}"))
        assert (problem.status, problem.code) == (401, "token_unknown")
        assert 'error="invalid_token"' in dict(problem.headers)["www-authenticate"]
        assert "guess" not in problem.message
        assert "guess" not in problem.next_step

    with_token_server(scenario)


def test_a_revoked_token_is_rejected_within_five_seconds() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        await authorizer.authenticate(request())
        token_server.tokens.clear()
        await authorizer.authenticate(request())
        await asyncio.sleep(5.0)
        assert (await refused(authorizer, request())).code == "token_unknown"

    with_token_server(scenario)


def test_an_unknown_token_is_verified_again_after_a_second() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        known = dict(token_server.tokens)
        token_server.tokens.clear()
        for _ in range(20):
            assert (await refused(authorizer, request())).status == 401
        assert token_server.requested == 1
        token_server.tokens.update(known)
        await asyncio.sleep(1.0)
        await authorizer.authenticate(request())

    with_token_server(scenario)


def test_a_cached_token_expires() -> None:
    async def scenario(world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        token_server.grant(expires_ms=world.clock.now_ms() + 2000)
        await authorizer.authenticate(request())
        await asyncio.sleep(2.0)
        problem = await refused(authorizer, request())
        assert (problem.status, problem.code) == (401, "token_expired")
        assert token_server.requested == 1

    with_token_server(scenario)


def test_a_token_above_its_rate_gets_retry_after() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        token_server.grant(requests_per_second=2, burst=3)
        for _ in range(3):
            await authorizer.authenticate(request())
        problem = await refused(authorizer, request())
        assert (problem.status, problem.code) == (429, "rate_limited")
        assert dict(problem.headers) == {"retry-after": "1"}
        await asyncio.sleep(1.0)
        await authorizer.authenticate(request())
        await authorizer.authenticate(request())
        assert (await refused(authorizer, request())).status == 429

    with_token_server(scenario)


def test_a_request_that_is_checked_again_counts_once() -> None:
    async def scenario(_: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        token_server.grant(requests_per_second=1, burst=1)
        presented = request()
        presented.caller = await authorizer.authenticate(presented)
        for _again in range(3):
            assert await authorizer.authenticate(presented) == presented.caller
        assert (await refused(authorizer, request())).status == 429

    with_token_server(scenario)


def test_a_rate_outlives_the_cache_entry_of_its_token() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        token_server.grant(requests_per_second=1, burst=60)
        for _ in range(60):
            await authorizer.authenticate(request())
        await asyncio.sleep(10.0)
        for _ in range(10):
            await authorizer.authenticate(request())
        assert (await refused(authorizer, request())).status == 429

    with_token_server(scenario)


def test_rates_are_per_token_and_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "RATES_MAX", 5)

    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        for number in range(20):
            checked = CheckedToken(token_id=f"t{number}", is_known=True, name="n", requests_per_second=1)
            token_server.tokens[f"t{number}", hash_secret("x")] = checked
            await authorizer.authenticate(request(f"Bearer {write_token(f't{number}', 'x')}"))
        assert len(authorizer._rates) == 5
        assert (await refused(authorizer, request(f"Bearer {write_token('t19', 'x')}"))).status == 429

    with_token_server(scenario)


def test_many_callers_share_few_requests_to_the_brokers() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(authorizer.authenticate(request()))
            for number in range(250):
                group.create_task(refused(authorizer, request(f"Bearer {write_token(f'x{number}', 'y')}")))
        assert token_server.requested <= 4
        assert max(token_server.sizes) <= token_checks.TOKENS_PER_REQUEST_MAX

    with_token_server(scenario)


def test_invalid_tokens_are_bounded_and_do_not_evict_valid_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_checks, "CACHED_MAX", 20)

    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        await authorizer.authenticate(request())
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(refused(authorizer, request(f"Bearer {write_token('a1', str(number))}")))
        requested = token_server.requested
        await authorizer.authenticate(request())
        assert token_server.requested == requested
        checks = authorizer._checks
        assert len(checks._invalid_tokens) == 20
        assert len(checks._valid_grants) == 1
        assert not checks._pending_checks

    with_token_server(scenario)


def test_too_many_waiting_tokens_are_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_checks, "WAITING_MAX", 3)

    async def scenario(_world: World, authorizer: TokenAuthorizer, _token_server: TokenServer) -> None:
        tasks = [
            asyncio.create_task(refused(authorizer, request(f"Bearer {write_token('b', str(number))}")))
            for number in range(5)
        ]
        problems = [await task for task in tasks]
        assert [problem.status for problem in problems] == [401, 401, 401, 503, 503]
        assert dict(problems[-1].headers) == {"retry-after": "1"}

    with_token_server(scenario)


def test_a_cancelled_check_does_not_affect_others() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        hasty = asyncio.create_task(authorizer.authenticate(request()))
        patient = asyncio.create_task(authorizer.authenticate(request()))
        await asyncio.sleep(0)
        hasty.cancel()
        assert (await patient).token_id == "a1"
        assert token_server.requested == 1

    with_token_server(scenario)


def test_no_token_is_accepted_while_no_broker_responds() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            authorizer = TokenAuthorizer(cluster, world.clock)
            broker.script(apis.CHECK_TOKEN, *[Fault.CLOSE] * 100)
            with pytest.raises(HeadraceError) as raised:
                await authorizer.authenticate(request())
            assert raised.value.retriable
            broker.script(apis.API_VERSIONS, *[Fault.CLOSE] * 100)
            with pytest.raises(Unreachable):
                await authorizer.authenticate(request())

    in_world(scenario)


def test_the_missing_scope_is_named() -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        token_server.grant(scopes=["publish:orders", "consume:mail.*"])
        caller = await authorizer.authenticate(request())
        caller.require(Verb.PUBLISH, "orders")
        caller.require(Verb.CONSUME, "mail.out")
        caller.require(Verb.PUBLIC, None)
        for verb, topic, missing in (
            (Verb.CONSUME, "orders", "consume:orders"),
            (Verb.PUBLISH, "mail.out", "publish:mail.out"),
            (Verb.READ, None, "read:*"),
            (Verb.READ, "__acks.orders", "manage:__acks.orders"),
        ):
            with pytest.raises(Problem, match=r"lacks the scope") as raised:
                caller.require(verb, topic)
            assert (raised.value.status, raised.value.code) == (403, "scope_missing")
            assert missing in raised.value.message
            assert missing in raised.value.next_step

    with_token_server(scenario)


@pytest.mark.parametrize("topic", ['a"b', "a\r\nx-evil: 1", "ä"])
def test_a_topic_name_of_the_client_is_not_put_into_a_header(topic: str) -> None:
    with pytest.raises(Problem) as raised:
        Principal("ci", "a1", ()).require(Verb.READ, topic)
    assert all(
        character.isprintable() and character.isascii() for _, value in raised.value.headers for character in value
    )
    assert topic not in str(raised.value.headers)


def test_the_anonymous_principal_has_all_scopes() -> None:
    for verb in Verb:
        assert ANONYMOUS.may(verb, None)
        assert ANONYMOUS.may(verb, "__transaction_state")


def test_tokens_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(_world: World, authorizer: TokenAuthorizer, token_server: TokenServer) -> None:
        await authorizer.authenticate(request())
        token_server.tokens.clear()
        await asyncio.sleep(5.0)
        problem = await refused(authorizer, request())
        assert SECRET not in problem.response().body.decode()
        assert SECRET not in repr(authorizer._checks.__dict__)

    with caplog.at_level(logging.DEBUG):
        with_token_server(scenario)
    assert SECRET not in caplog.text
