"""Conversion of published values: bytes, text and JSON, keys, and delivery headers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from headrace.model.durations import InvalidDuration
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.model.message_headers import InvalidHeader
from headrace.sdk.errors import NotEncodable
from headrace.sdk.outgoing import NewMessage, encode_body, outgoing_message


@dataclass
class Order:
    id: int
    at: datetime


class Item(msgspec.Struct):
    name: str


class Model:
    """A class with the interface of a pydantic model."""

    def model_dump(self, mode: str) -> dict[str, str]:
        return {"mode": mode}


def headers_of(**fields: Any) -> dict[str, bytes | None]:
    return dict(outgoing_message("orders", NewMessage(**{"value": b"", **fields})).headers)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, None),
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (7, b"7"),
        (Order(1, datetime(2027, 1, 1, tzinfo=UTC)), b'{"id":1,"at":"2027-01-01T00:00:00Z"}'),
        (Item("x"), b'{"name":"x"}'),
        (Model(), b'{"mode":"json"}'),
        ([Model()], b'[{"mode":"json"}]'),
    ],
)
def test_bytes_are_unchanged_and_other_values_are_json_without_a_header(value: Any, written: bytes | None) -> None:
    assert encode_body(value) == (written, [])


def test_text_has_a_content_type() -> None:
    assert encode_body("grüß") == ("grüß".encode(), [("content-type", b"text/plain")])


def test_a_content_type_of_the_application_is_kept() -> None:
    assert encode_body("<a/>", {"Content-Type": "text/xml"}) == (b"<a/>", [("Content-Type", b"text/xml")])


@pytest.mark.parametrize("value", [object(), {"a": {1, object()}}, {(1, 2): 3}])
def test_a_value_without_json_form_is_rejected_with_its_type(value: Any) -> None:
    with pytest.raises(NotEncodable, match=type(value).__name__):
        encode_body(value)


def test_keys_and_headers_are_text_or_bytes() -> None:
    message = outgoing_message("orders", NewMessage(value=b"", key="c-42", headers={"a": "b", "c": b"\xff"}))
    assert message.key == b"c-42"
    assert message.headers == [("a", b"b"), ("c", b"\xff")]
    assert message.topic == "orders"


def test_delivery_options_become_headers() -> None:
    assert headers_of(priority=9, ttl="5m", dedup_id="x1", tags=["eu", "new"]) == {
        "headrace-priority": b"9",
        "headrace-ttl": b"300000ms",
        "headrace-dedup-id": b"x1",
        "headrace-tags": b"eu,new",
    }


def test_delayed_messages_go_to_the_delayed_topic() -> None:
    message = outgoing_message("orders", NewMessage(value=b"", delay="90s", repeat="every 10s"))
    assert (message.topic, message.delayed_for) == ("__delayed.orders", "orders")
    assert dict(message.headers) == {"headrace-delay": b"90000ms", "headrace-repeat": b"every 10s"}
    assert headers_of(deliver_at="1970-01-01T00:00:02Z") == {"headrace-deliver-at": b"2000"}


def test_a_dedup_id_chooses_the_partition_of_a_message_without_a_key() -> None:
    assert outgoing_message("orders", NewMessage(value=b"", dedup_id="x")).partitioning_key == b"x"
    assert outgoing_message("orders", NewMessage(value=b"", dedup_id="x", key="k")).partitioning_key is None


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"priority": 10}, InvalidHeader),
        ({"priority": -1}, InvalidHeader),
        ({"tags": "eu"}, InvalidHeader),
        ({"tags": ["a,b"]}, InvalidHeader),
        ({"tags": [" "]}, InvalidHeader),
        ({"delay": "soon"}, InvalidDuration),
        ({"delay": 1, "deliver_at": "2027-01-01T00:00:00Z"}, InvalidRequest),
        ({"repeat": "now and then"}, HeadraceError),
    ],
)
def test_invalid_messages_are_rejected_before_anything_is_sent(
    fields: dict[str, Any], refusal: type[HeadraceError]
) -> None:
    with pytest.raises(refusal):
        headers_of(**fields)
