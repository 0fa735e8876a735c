"""DescribePushes returns the webhooks to a pusher, once per version."""

from __future__ import annotations

from tests.unit.broker.admin.test_config_admin import DELETE, SET, change, describe
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.wire.apis import DESCRIBE_PUSHES
from headrace.wire.codec.codec import decode, encode
from headrace.wire.messages.queues import DescribedPush, DescribePushesRequest, DescribePushesResponse

GROUP_TYPE = 32
URL, SECRET = "headrace.push.url", "headrace.push.secret"


async def describe_pushes(simulated_broker: SimulatedBroker, version: str = "") -> DescribePushesResponse:
    response = await simulated_broker.send(DescribePushesRequest(version=version), 0)
    assert isinstance(response, DescribePushesResponse)
    return response


async def test_only_subscriptions_with_a_url_are_described(simulated_broker: SimulatedBroker) -> None:
    assert (await describe_pushes(simulated_broker)).pushes == []
    await change(simulated_broker, GROUP_TYPE, "b", (URL, SET, "http://b.test/"), (SECRET, SET, "hush"))
    await change(simulated_broker, GROUP_TYPE, "c", ("headrace.push.rate", SET, "5"))
    await change(
        simulated_broker,
        GROUP_TYPE,
        "a",
        (URL, SET, "https://a.test/"),
        ("headrace.push.concurrency", SET, "2"),
        ("headrace.push.timeout.ms", SET, "500"),
        ("headrace.push.topics", SET, "x,y"),
        ("headrace.retry.backoff.ms", SET, "700"),
    )
    assert (await describe_pushes(simulated_broker)).pushes == [
        DescribedPush("a", "https://a.test/", "", 2, 0, 500, 700, ["x", "y"]),
        DescribedPush("b", "http://b.test/", "hush", 8, 0, 10_000, 0),
    ]


async def test_a_request_with_the_current_version_gets_an_empty_response(simulated_broker: SimulatedBroker) -> None:
    await change(simulated_broker, GROUP_TYPE, "a", (URL, SET, "http://a.test/"))
    first = await describe_pushes(simulated_broker)
    assert first.is_changed
    again = await describe_pushes(simulated_broker, first.version)
    assert (again.is_changed, again.pushes, again.version) == (False, [], first.version)
    await change(simulated_broker, GROUP_TYPE, "a", (SECRET, SET, "hush"))
    assert (await describe_pushes(simulated_broker, first.version)).is_changed
    await change(simulated_broker, GROUP_TYPE, "a", (SECRET, DELETE, None))
    assert (await describe_pushes(simulated_broker)).version == first.version, "the same everywhere and at any time"


async def test_a_secret_is_never_described(simulated_broker: SimulatedBroker) -> None:
    await change(simulated_broker, GROUP_TYPE, "a", (SECRET, SET, "hush"))
    (config,) = (await describe(simulated_broker, GROUP_TYPE, "a", [SECRET], include_synonyms=True)).configs
    assert (config.value, config.is_sensitive, config.config_type) == (None, True, 9)
    assert [synonym.value for synonym in config.synonyms] == [None, None]
    assert "hush" not in repr(simulated_broker.broker.group_configs.of("a"))


def test_a_push_response_survives_encoding() -> None:
    push = DescribedPush("a", "https://a.test/", "s", 2, 3, 500, 700, ["x", "y"])
    response = DescribePushesResponse(version="v", is_changed=True, pushes=[push])
    data = b"".join(bytes(chunk) for chunk in encode(response, 0))  # type: ignore[call-overload]
    assert decode(DescribePushesResponse, 0, memoryview(data)) == response
    assert DESCRIBE_PUSHES == 10_012
