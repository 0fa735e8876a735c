"""Fuzz the REST application with the tokens of three tenants: `python -m tests.fuzz.rest --inputs 1000000 --jobs 2`.

The application runs with an in-process broker in a simulated world, without sockets. The fuzzer checks for each input
that

- it ends within `STEPS_MAX` calls of Python functions, so that a loop without progress fails instead of timing out;
- the response is not a 5xx (except 504, when no reply arrives in time);
- nothing of the two other tenants has changed: topics, their configuration, the number of their messages,
  subscriptions, their positions, their configuration;
- a request with a used Idempotency-Key is the first one, or stores nothing;
- the response contains no hidden topic and no message of another tenant;
- memory is bounded: the process must not grow from one world to the next.

One topic changes its owner: the owner deletes it, and another tenant creates a topic of the same name, with a token for
that name only. Nothing of the former owner may be found there: no message, no dead letter.

A failure names the seed of the world and the number of the input: `--seed SEED --inputs 1000` repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from tests.fuzz.idempotency import WINDOW_MS, IdempotencyModel
from tests.fuzz.rest_requests import Requests, Tenant
from tests.fuzz.steps import StepLimit, TooManySteps
from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness

from headrace.broker.queues.subscription_configs import SubscriptionConfigs
from headrace.http.message import Request, Response, StreamedResponse
from headrace.http.problems import Problem
from headrace.protocols.rest.application import RestApplication

TENANTS = ("alphaq", "betaw", "gammax")
SHARED = "common.box"
WORLD_INPUTS = 1000
PROCESS_INPUTS = 20_000
WARM_UP_INPUTS = 5000  # one-time imports and caches are complete by then
REPAIR_INPUTS = 50
SHARED_WEIGHT = 3  # how much more often its owner uses the topic that changes owners
STEPS_MAX = 1_000_000
GROWTH_BYTES_MAX = 256 << 20
_NO_REPLY = 504


class Failure(AssertionError):
    """An input with a forbidden effect."""


class Socket:
    """A WebSocket whose peer sends a few frames and closes it."""

    def __init__(self, frames: list[str | bytes]) -> None:
        self.frames = frames
        self.sent: list[str] = []

    async def receive(self) -> str | bytes | None:
        await asyncio.sleep(0.001)
        return self.frames.pop() if self.frames else None

    async def send(self, text: str) -> None:
        self.sent.append(text)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.sent.append(f"{code} {reason}")


class RestFuzzer:
    """One simulated world: each tenant has topics with a subscription, and a token."""

    def __init__(self, harness: RestHarness, random: Random, statuses: Counter[int]) -> None:
        self._stage = harness
        self._random = random
        self._statuses = statuses
        self._operator = ""
        self._requests = Requests(random, [*harness.application.routes])
        self.tenants = [Tenant(name, hidden=_hidden(name), secret=_secret(name)) for name in TENANTS]
        self.request: Request | None = None
        self.body = b""
        self._state: dict[str, Any] = {}
        self._owner = self.tenants[0]
        self._idempotency = IdempotencyModel(harness.broker, harness.host.clock.now_ms)

    async def begin(self) -> None:
        self._operator = await self._stage.token("manage:*")
        for tenant in self.tenants:
            tenant.tokens[False] = await self._stage.token(scope_of(tenant.name), name=tenant.name)
            scopes = (scope_of(tenant.name), f"manage:{SHARED}")
            tenant.tokens[True] = await self._stage.token(*scopes, name=tenant.name)
            tenant.token = tenant.tokens[False]
        if self._random.random() < 0.5:  # not created by the broker, so it outlives its source
            await self._create("/topics", {"name": f"{SHARED}.dlq"})
        await self._hand_over()

    async def repair(self) -> None:
        """Create deleted topics and subscriptions again, so that most requests find something."""
        if self._random.random() < 0.3:
            await self._hand_over()
        for tenant in self.tenants:
            for topic in tenant.topics:
                configs = {"dedup.window.ms": WINDOW_MS}
                await self._create("/topics", {"name": topic, "partitions": 2, "configs": configs})
                for name in dict.fromkeys(tenant.subscriptions):
                    await self._create(f"/topics/{topic}/subscriptions", {"name": name, "start": "earliest"})
        self._state = self._read_state()

    async def _hand_over(self) -> None:
        """The owner of the shared topic deletes it; the topic of that name belongs to another tenant from then on."""
        owner = self._owner
        await self._leave_dead_letters(owner)
        await self._stage.ask("DELETE", f"/topics/{SHARED}", authorization=owner.tokens[True])
        await asyncio.sleep(2)  # pushes and long polls notice it
        owner.token = owner.tokens[False]
        owner.topics = [topic for topic in owner.topics if topic != SHARED]
        self._owner = self._random.choice(self.tenants)
        self._owner.token = self._owner.tokens[True]
        self._owner.topics.extend([SHARED] * SHARED_WEIGHT)

    async def _leave_dead_letters(self, owner: Tenant) -> None:
        """Publish and pull as far as the configuration of the topic allows."""
        token = owner.tokens[True]
        await self._stage.ask("POST", f"/topics/{SHARED}/messages", [owner.secret], authorization=token)
        text = await self._stage.ask("GET", f"/topics/{SHARED}/subscriptions/workers/messages", authorization=token)
        receipts = [message["receipt"] for message in text.json.get("messages", ())]
        if receipts:
            path = f"/subscriptions/workers/reject?topic={SHARED}"
            await self._stage.ask("POST", path, {"receipts": receipts}, authorization=token)
            await asyncio.sleep(1)  # dead letters are copied in the background

    def _read_state(self) -> dict[str, Any]:
        return state(self._stage, self._owner.name)

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        text = await self._stage.ask("POST", path, body, authorization=self._operator)
        assert text.status in (200, 201, 409), text.raw

    async def input(self) -> None:
        """Send one request of a tenant, or of a client without a token."""
        tenant = self._random.choice(self.tenants)
        others = [other for other in self.tenants if other is not tenant]
        request = self.request = self._requests.draw(tenant, others)
        requested = self._idempotency.before(request)
        status, text = await self._respond(request, tenant)
        if requested is not None and (wrong := self._idempotency.after(requested, status, self.body)):
            raise Failure(f"{wrong}: {request}")
        self._statuses[status] += 1
        if status >= 500 and status != _NO_REPLY:
            raise Failure(f"{status} {text[:500]!r} to {request}")
        before, self._state = self._state, self._read_state()
        for other in others:
            was, became = before[other.name], self._state[other.name]
            if was != became:
                raise Failure(f"{tenant.name} has changed {other.name}: {was} became {became} by {request}")
            for marker in (other.hidden.encode(), other.secret.encode()):
                if marker in text:
                    raise Failure(f"{tenant.name} got what is {other.name}'s: {text[:1000]!r} to {request}")

    async def _respond(self, request: Request, tenant: Tenant) -> tuple[int, bytes]:
        application: RestApplication = self._stage.application
        try:
            await application.admit(request)
            response = await application.handle(request)
        except Problem as problem:
            response = problem.response()
        if isinstance(response, Response):
            tenant.learn(request, response.body)
            self.body = response.body
            return response.status, response.body + repr(response.headers).encode()
        if isinstance(response, StreamedResponse):
            chunks = [await anext(response.chunks)]
            with suppress(TimeoutError, StopAsyncIteration):
                async with asyncio.timeout(0.05):
                    chunks.append(await anext(response.chunks))
            await response.chunks.aclose()  # type: ignore[attr-defined]
            return response.status, b"".join(chunks)
        socket = Socket([self._requests.frame() for _ in range(self._random.randrange(4))])
        await response.websocket_handler(socket)
        return 101, "\n".join(socket.sent).encode()


class Floors(dict[str, int | None]):
    """The ack floors of subscriptions; None for one with dead letters, which timers write."""

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Floors)
        both = ((floor, other.get(name)) for name, floor in self.items())
        return self.keys() == other.keys() and all(a == b or a is None or b is None for a, b in both)

    __hash__ = None


def state(harness: RestHarness, owner: str) -> dict[str, Any]:
    """What each tenant has; the shared topic belongs to `owner`. What timers change by themselves (leases, dead
    letters) is left out."""
    found: dict[str, dict[str, Any]] = {tenant: {} for tenant in TENANTS}
    broker = harness.broker
    for topic in broker.catalogue:
        tenant = _tenant_of(topic.name.removeprefix("__delayed."), owner)
        if tenant in found and not topic.name.endswith(".dlq"):
            ends = [partition.log.end_offset for partition in topic.led.values()]
            found[tenant][topic.name] = (topic.id, ends, topic.record.configs)
    for led in broker.subscriptions:
        topic_name, index = led.partition.topic.removeprefix("__acks."), led.partition.index
        tenant = _tenant_of(topic_name, owner)
        if tenant in found and not topic_name.endswith(".dlq"):
            floors = {
                name: None if one.stats.dead or one.stats.discarded else one.floor
                for name, one in led.subscriptions.items()
            }
            found[tenant][f"{topic_name}-{index}"] = Floors(floors)
    configs: SubscriptionConfigs = broker.subscription_configs
    for (topic_id, name), overrides in configs._overrides.items():
        source = broker.catalogue.find_by_id(topic_id)
        if source is not None and (tenant := _tenant_of(source.name, owner)) in found:
            found[tenant][f"{source.name}/{name}"] = dict(overrides)
    return found


def _tenant_of(topic: str, owner: str) -> str:
    return owner if topic == SHARED else topic.partition(".")[0]


def scope_of(tenant: str) -> str:
    return f"manage:{tenant}.*"


def _hidden(tenant: str) -> str:
    """Return a part of topic names that only requests of this tenant contain."""
    return f"hidden-{tenant}"


def _secret(tenant: str) -> str:
    """Return a part of every message of the tenant that no other tenant's request contains."""
    return f"secret-{tenant}"


def run_world(seed: int, inputs: int, statuses: Counter[int]) -> int:
    """Return the maximum number of steps of an input."""
    steps_max = 0
    at = ""

    async def scenario(harness: RestHarness) -> None:
        nonlocal steps_max, at
        fuzzer = RestFuzzer(harness, Random(seed), statuses)
        await fuzzer.begin()
        for number in range(inputs):
            if number % REPAIR_INPUTS == 0:
                await fuzzer.repair()
            try:
                with StepLimit(STEPS_MAX) as limit:
                    await fuzzer.input()
            finally:
                at = f"input {number}, {fuzzer.request}"
            steps_max = max(steps_max, limit.steps)

    try:
        with_rest_harness(scenario, seed, with_auth=True, auto_create_topics_enable="true")
    except (Exception, TooManySteps) as error:
        sys.settrace(None)
        raise Failure(f"seed {seed}, {at}: {error!r}") from error
    return steps_max


class Report(NamedTuple):
    statuses: Counter[int]
    steps_max: int
    grown_bytes: int


def run(seed: int, inputs: int) -> Report:
    """Run several worlds in sequence."""
    statuses: Counter[int] = Counter()
    steps_max, before = 0, 0
    for first in range(0, inputs, WORLD_INPUTS):
        steps_max = max(steps_max, run_world(seed + first // WORLD_INPUTS, min(WORLD_INPUTS, inputs - first), statuses))
        if first <= WARM_UP_INPUTS:
            before = _rss_bytes()
    return Report(statuses, steps_max, _rss_bytes() - before)


def _rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began, statuses, steps_max, grown_max = time.monotonic(), Counter[int](), 0, 0
    firsts = range(0, options.inputs, PROCESS_INPUTS)
    seeds = [options.seed + first // WORLD_INPUTS for first in firsts]
    counts = [min(PROCESS_INPUTS, options.inputs - first) for first in firsts]
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        for report in pool.map(run, seeds, counts):
            statuses += report.statuses
            steps_max = max(steps_max, report.steps_max)
            grown_max = max(grown_max, report.grown_bytes)
            sys.stdout.write(
                f"{statuses.total()} inputs in {time.monotonic() - began:.0f} s, at most {steps_max} steps, "
                f"memory grew by {grown_max >> 10} KiB, responses {dict(sorted(statuses.items()))}\n"
            )
            sys.stdout.flush()
    return 1 if grown_max > GROWTH_BYTES_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
