"""Who has no token is told how to get one, who lacks a scope which one, who is too fast when to come again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted import Cast, Fault, ScriptedBroker, in_world

from headrace.client.errors import Unreachable
from headrace.doors.rest import access, token_checks
from headrace.doors.rest.access import ANYBODY, Caller, OpenGatekeeper, TokenGatekeeper
from headrace.http.message import Request
from headrace.http.problem import Problem
from headrace.http.routes import Verb
from headrace.model.errors import HeadraceError
from headrace.model.tokens import Scope, hash_secret, write_token
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.check_token import CheckedToken, CheckTokenRequest, CheckTokenResponse

SECRET = "s3cret" * 7
TOKEN = write_token("a1", SECRET)

Scenario = Callable[[World, TokenGatekeeper, "Office"], Awaitable[None]]


class Office:
    """Who checks tokens: a broker that knows these."""

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
        told = [
            self.tokens.get((token.token_id, bytes(token.hash)), CheckedToken(token_id=token.token_id))
            for token in request.tokens
        ]
        return CheckTokenResponse(tokens=told)

    def grant(self, **terms: Any) -> None:
        self.tokens["a1", hash_secret(SECRET)] = CheckedToken(token_id="a1", is_known=True, name="ci", **terms)

    @property
    def asked(self) -> int:
        return self.broker.count(apis.CHECK_TOKEN)


def with_office(scenario: Scenario) -> None:
    async def play(world: World) -> None:
        cast = Cast(world)
        office = Office(await cast.broker())
        async with cast.cluster() as cluster:
            await scenario(world, TokenGatekeeper(cluster, world.clock), office)

    in_world(play)


def request(authorization: str | None = f"Bearer {TOKEN}") -> Request:
    headers = {} if authorization is None else {"authorization": authorization}
    return Request("GET", "/topics", {}, headers, b"", "peer", "r1")


async def refused(gatekeeper: TokenGatekeeper, presented: Request) -> Problem:
    with pytest.raises(Problem) as told:
        await gatekeeper.identify(presented)
    return told.value


def test_without_access_rules_everybody_may_everything() -> None:
    async def scenario(_: World) -> None:
        gatekeeper = OpenGatekeeper()
        caller = await gatekeeper.identify(request(None))
        for verb in Verb:
            gatekeeper.authorize(caller, verb, None)
            gatekeeper.authorize(caller, verb, "__consumer_offsets")

    in_world(scenario)


@pytest.mark.parametrize("authorization", [None, "", "Basic YTpi", "Bearer", "Bearer ", "Bearer x", "Bearer hr_a1_"])
def test_who_has_no_token_is_asked_for_one(authorization: str | None) -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        problem = await refused(gatekeeper, request(authorization))
        assert problem.status == 401
        assert problem.code in ("token_missing", "token_malformed")
        ((name, challenge),) = problem.headers
        assert name == "www-authenticate"
        assert challenge.startswith("Bearer ")
        assert "headrace token create" in problem.next_step
        assert office.asked == 0

    with_office(scenario)


def test_a_token_says_who_calls_and_is_asked_for_once() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        office.grant(scopes=["publish:orders"])
        for scheme in ("Bearer", "bearer", "BEARER"):
            caller = await gatekeeper.identify(request(f"{scheme} {TOKEN}"))
            assert caller == Caller("ci", "a1", (Scope("publish", "orders"),))
        assert office.asked == 1

    with_office(scenario)


def test_a_token_with_another_secret_is_refused_without_telling_either() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, _office: Office) -> None:
        problem = await refused(gatekeeper, request(f"Bearer {write_token('a1', 'guess')}"))
        assert (problem.status, problem.code) == (401, "token_unknown")
        assert 'error="invalid_token"' in dict(problem.headers)["www-authenticate"]
        assert "guess" not in problem.message
        assert "guess" not in problem.next_step

    with_office(scenario)


def test_a_revoked_token_is_refused_within_five_seconds() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        await gatekeeper.identify(request())
        office.tokens.clear()
        await gatekeeper.identify(request())
        await asyncio.sleep(5.0)
        assert (await refused(gatekeeper, request())).code == "token_unknown"

    with_office(scenario)


def test_a_token_that_was_unknown_is_asked_for_again_after_a_second() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        known = dict(office.tokens)
        office.tokens.clear()
        for _ in range(20):
            assert (await refused(gatekeeper, request())).status == 401
        assert office.asked == 1
        office.tokens.update(known)
        await asyncio.sleep(1.0)
        await gatekeeper.identify(request())

    with_office(scenario)


def test_a_token_expires_while_it_is_remembered() -> None:
    async def scenario(world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        office.grant(expires_ms=world.clock.now_ms() + 2000)
        await gatekeeper.identify(request())
        await asyncio.sleep(2.0)
        problem = await refused(gatekeeper, request())
        assert (problem.status, problem.code) == (401, "token_expired")
        assert office.asked == 1

    with_office(scenario)


def test_who_sends_too_many_requests_is_told_when_to_come_again() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        office.grant(requests_per_second=2, burst=3)
        for _ in range(3):
            await gatekeeper.identify(request())
        problem = await refused(gatekeeper, request())
        assert (problem.status, problem.code) == (429, "rate_limited")
        assert dict(problem.headers) == {"retry-after": "1"}
        await asyncio.sleep(1.0)
        await gatekeeper.identify(request())
        await gatekeeper.identify(request())
        assert (await refused(gatekeeper, request())).status == 429

    with_office(scenario)


def test_a_request_that_is_checked_again_is_counted_once() -> None:
    async def scenario(_: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        office.grant(requests_per_second=1, burst=1)
        presented = request()
        presented.caller = await gatekeeper.identify(presented)
        for _again in range(3):
            assert await gatekeeper.identify(presented) == presented.caller
        assert (await refused(gatekeeper, request())).status == 429

    with_office(scenario)


def test_a_rate_outlives_what_is_remembered_of_its_token() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        office.grant(requests_per_second=1, burst=60)
        for _ in range(60):
            await gatekeeper.identify(request())
        await asyncio.sleep(10.0)
        for _ in range(10):
            await gatekeeper.identify(request())
        assert (await refused(gatekeeper, request())).status == 429

    with_office(scenario)


def test_the_rates_of_tokens_are_their_own_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "RATES_MAX", 5)

    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        for number in range(20):
            checked = CheckedToken(token_id=f"t{number}", is_known=True, name="n", requests_per_second=1)
            office.tokens[f"t{number}", hash_secret("x")] = checked
            await gatekeeper.identify(request(f"Bearer {write_token(f't{number}', 'x')}"))
        assert len(gatekeeper._rates) == 5
        assert (await refused(gatekeeper, request(f"Bearer {write_token('t19', 'x')}"))).status == 429

    with_office(scenario)


def test_many_callers_share_a_few_requests_to_the_brokers() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(gatekeeper.identify(request()))
            for number in range(250):
                group.create_task(refused(gatekeeper, request(f"Bearer {write_token(f'x{number}', 'y')}")))
        assert office.asked <= 4
        assert max(office.sizes) <= token_checks.TOGETHER_MAX

    with_office(scenario)


def test_made_up_tokens_fill_no_memory_and_push_out_no_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_checks, "REMEMBERED_MAX", 20)

    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        await gatekeeper.identify(request())
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(refused(gatekeeper, request(f"Bearer {write_token('a1', str(number))}")))
        asked = office.asked
        await gatekeeper.identify(request())
        assert office.asked == asked
        checks = gatekeeper._checks
        assert len(checks._bad) == 20
        assert len(checks._good) == 1
        assert not checks._waiting

    with_office(scenario)


def test_who_comes_when_too_many_wait_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_checks, "WAITING_MAX", 3)

    async def scenario(_world: World, gatekeeper: TokenGatekeeper, _office: Office) -> None:
        tasks = [
            asyncio.create_task(refused(gatekeeper, request(f"Bearer {write_token('b', str(number))}")))
            for number in range(5)
        ]
        problems = [await task for task in tasks]
        assert [problem.status for problem in problems] == [401, 401, 401, 503, 503]
        assert dict(problems[-1].headers) == {"retry-after": "1"}

    with_office(scenario)


def test_one_who_gives_up_does_not_take_the_answer_from_others() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        hasty = asyncio.create_task(gatekeeper.identify(request()))
        patient = asyncio.create_task(gatekeeper.identify(request()))
        await asyncio.sleep(0)
        hasty.cancel()
        assert (await patient).token_id == "a1"
        assert office.asked == 1

    with_office(scenario)


def test_nobody_comes_in_while_no_broker_answers() -> None:
    async def scenario(world: World) -> None:
        cast = Cast(world)
        broker = await cast.broker()
        async with cast.cluster() as cluster:
            gatekeeper = TokenGatekeeper(cluster, world.clock)
            broker.script(apis.CHECK_TOKEN, *[Fault.CLOSE] * 100)
            with pytest.raises(HeadraceError) as told:
                await gatekeeper.identify(request())
            assert told.value.retriable
            broker.script(apis.API_VERSIONS, *[Fault.CLOSE] * 100)
            with pytest.raises(Unreachable):
                await gatekeeper.identify(request())

    in_world(scenario)


def test_the_missing_scope_is_named() -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        office.grant(scopes=["publish:orders", "consume:mail.*"])
        caller = await gatekeeper.identify(request())
        gatekeeper.authorize(caller, Verb.PUBLISH, "orders")
        gatekeeper.authorize(caller, Verb.CONSUME, "mail.out")
        gatekeeper.authorize(caller, Verb.PUBLIC, None)
        for verb, topic, missing in (
            (Verb.CONSUME, "orders", "consume:orders"),
            (Verb.PUBLISH, "mail.out", "publish:mail.out"),
            (Verb.READ, None, "read:*"),
            (Verb.READ, "__acks.orders", "manage:__acks.orders"),
        ):
            with pytest.raises(Problem, match=r"lacks the scope") as told:
                gatekeeper.authorize(caller, verb, topic)
            assert (told.value.status, told.value.code) == (403, "scope_missing")
            assert missing in told.value.message
            assert missing in told.value.next_step

    with_office(scenario)


@pytest.mark.parametrize("topic", ['a"b', "a\r\nx-evil: 1", "ä"])
def test_a_name_from_outside_does_not_get_into_a_header(topic: str) -> None:
    with pytest.raises(Problem) as told:
        Caller("ci", "a1", ()).require(Verb.READ, topic)
    assert all(
        character.isprintable() and character.isascii() for _, value in told.value.headers for character in value
    )
    assert topic not in str(told.value.headers)


def test_whoever_is_anybody_lacks_nothing() -> None:
    for verb in Verb:
        assert ANYBODY.may(verb, None)
        assert ANYBODY.may(verb, "__transaction_state")


def test_no_token_ever_gets_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(_world: World, gatekeeper: TokenGatekeeper, office: Office) -> None:
        await gatekeeper.identify(request())
        office.tokens.clear()
        await asyncio.sleep(5.0)
        problem = await refused(gatekeeper, request())
        assert SECRET not in problem.response().body.decode()
        assert SECRET not in repr(gatekeeper._checks.__dict__)

    with caplog.at_level(logging.DEBUG):
        with_office(scenario)
    assert SECRET not in caplog.text
