"""Invalid arguments are rejected by an error of the SDK that says what is valid, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from headrace.model.configs import Value
from headrace.model.errors import HeadraceError, InvalidConfig, InvalidTopic
from headrace.sdk import AsyncClient, InvalidRequest, NewMessage, NotEncodable
from headrace.sdk.arguments import config_texts

Call = Callable[[Any], Any]


async def handle(message: object) -> None: ...


INVALID: list[tuple[Call, str]] = [
    (lambda c: c.consume("orders", start="oldest"), "start='oldest' is not valid; use 'earliest' or 'latest'"),
    (lambda c: c.consume("orders", start=0), "start=0 is not valid; use 'earliest' or 'latest'"),
    (lambda c: c.consume("orders", commit="sometimes"), "commit='sometimes' is not valid; use 'auto' or 'manual'"),
    (lambda c: c.consume("orders", group=""), "group='' is not valid"),
    (lambda c: c.consume([]), r"topics=\[\] is not valid"),
    (lambda c: c.consume(5), "topics=5 is not valid"),
    (lambda c: c.subscribe("orders", "billing", start="first"), "use 'earliest' or 'latest'"),
    (lambda c: c.subscribe("orders", ""), "subscription='' is not valid"),
    (lambda c: c.subscribe("orders", "billing", prefetch=0), "prefetch=0 is not valid; use a whole number, at least 1"),
    (lambda c: c.subscribe("orders", "billing", concurrency="2"), "concurrency='2' is not valid"),
    (lambda c: c.subscribe("orders", "billing", lease=[]), "not a duration; write"),
    (lambda c: c.work("orders", "billing", handle, start="first"), "use 'earliest' or 'latest'"),
    (lambda c: c.work("orders", "billing", handle, prefetch=0), "prefetch=0 is not valid"),
    (lambda c: c.work("orders", "billing", None), "handler=None is not valid; use a function that takes a message"),
    (lambda c: c.work("orders", "billing", lambda: 1), "cannot be called with one argument, the message"),
    (lambda c: c.respond("prices", "pricing", None), "handler=None is not valid"),
    (lambda c: c.create_subscription("orders", "billing", start="first"), "use 'earliest' or 'latest'"),
    (lambda c: c.create_subscription("orders", None), "subscription=None is not valid"),
    (lambda c: c.create_subscription("orders", "billing", configs={"a": None}), "the config 'a' cannot be None"),
    (lambda c: c.create_topic("orders", partitions="3"), "partitions='3' is not valid"),
    (lambda c: c.create_topic("orders", configs=["a"]), "use a dict of names and values"),
    (lambda c: c.publish("", "a"), "the empty string is not allowed"),
    (lambda c: c.publish("my orders", "a"), "'my orders' contains one or more characters other than"),
    (lambda c: c.publish(5, "a"), "topic=5 is not valid"),
    (lambda c: c.publish("orders", "a", key=5), r"a key is text or bytes, not 5; write key=str\(...\)"),
    (lambda c: c.publish("orders", "a", headers={"a": 1}), "the header 'a' cannot be 1"),
    (lambda c: c.publish("orders", "a", headers=["a"]), "use a dict of names and values"),
    (lambda c: c.publish("orders", "a", partition="0"), "partition='0' is not valid; use a whole number, at least 0"),
    (lambda c: c.publish("orders", "a", priority="high"), "must be a digit from 0 to 9"),
    (lambda c: c.publish("orders", "a", dedup_id=7), "dedup_id=7 is not valid"),
    (lambda c: c.publish("orders", "a", tags=[1]), "a tag is a word without commas"),
    (lambda c: c.publish("orders", "a", delay=True, deliver_at=5), "cannot be combined"),
    (lambda c: c.publish("orders", "a", deliver_at=date(2027, 1, 1)), "not a time; write"),
    (lambda c: c.publish("orders", "a", repeat=10), "repeat=10 is not valid"),
    (lambda c: c.publish_many("orders", "abc"), "use a list of values, or `publish` for one"),
    (lambda c: c.publish_many("orders", {"id": 1}), "use a list of values, or `publish` for one"),
    (lambda c: c.publish_many("orders", [NewMessage(value=1, key=5)]), "a key is text or bytes"),  # type: ignore[arg-type]
    (lambda c: c.request("prices", 1, key=5), "a key is text or bytes"),
    (lambda c: c.cancel("id"), "'id' is not a message id; write <topic>:<partition>:<offset>"),
    (lambda c: c.cancel(5), "receipt=5 is not valid"),
    (lambda c: c.redrive("orders", ["orders.dlq:0:1"]), "use a list of what `dead_letters` returns"),
    (lambda c: c.transaction(""), "transactional_id='' is not valid"),
]


@pytest.mark.parametrize(("call", "message"), INVALID, ids=[message for _, message in INVALID])
async def test_an_invalid_argument_is_rejected_before_anything_is_sent(call: Call, message: str) -> None:
    async with AsyncClient("127.0.0.1:1", timeout=0.05) as client:
        with pytest.raises(HeadraceError, match=message):
            await call(client)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "zip"}, "compression='zip' is not valid; use 'none', 'gzip', 'snappy', 'lz4' or 'zstd'"),
        ({"address": 9092}, "address=9092 is not valid; write a text such as '127.0.0.1:9092'"),
        ({"address": "here:there"}, "'there' is not a port"),
        ({"timeout": None}, "None is not a duration"),
        ({"client_id": 7}, "client_id=7 is not valid"),
    ],
)
def test_an_invalid_option_of_a_client_is_rejected_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        AsyncClient(**options)


def test_configs_are_numbers_booleans_or_text() -> None:
    configs: dict[str, Value] = {
        "share.delivery.count.limit": 10,
        "headrace.expiry.enable": True,
        "headrace.filter": "key = 'a'",
    }
    assert config_texts(configs) == {
        "share.delivery.count.limit": "10",
        "headrace.expiry.enable": "true",
        "headrace.filter": "key = 'a'",
    }


def test_an_error_without_a_text_of_its_own_is_printed_with_its_meaning() -> None:
    assert str(InvalidTopic()).startswith("The topic name is invalid; use 1 to 249 of the characters")
    assert str(NotEncodable("why")) == InvalidRequest("why").message == "why"
    assert InvalidConfig().message == "The name or value of a config is invalid."
