"""Reading messages: as bytes, as text, as JSON, and as the types of the application."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from headrace.model.ids import MessageId
from headrace.sdk.incoming import Received, Reply, Undecodable


@dataclass
class Order:
    id: int


class Model:
    """As pydantic's models look to us."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @classmethod
    def model_validate_json(cls, text: bytes) -> Model:
        return cls(text)


def received(value: bytes | None, key: bytes | None = None) -> Received:
    return Received(MessageId("orders", 1, 7), 1000, key, value, [("a", b"1"), ("a", b"2"), ("b", None)])


def test_a_message_says_where_it_lies_and_when_it_was_published() -> None:
    message = received(b"x", b"c-42")
    assert str(message.id) == "orders:1:7"
    assert (message.topic, message.partition, message.offset) == ("orders", 1, 7)
    assert (message.key, message.raw_key) == ("c-42", b"c-42")
    assert message.published_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert repr(message) == "<Received orders:1:7>"


def test_of_headers_with_one_name_the_last_counts() -> None:
    assert received(b"").headers == {"a": "2", "b": ""}
    assert list(received(b"").raw_headers) == [("a", b"1"), ("a", b"2"), ("b", None)]


def test_a_value_is_read_as_text_or_json_or_a_type() -> None:
    assert received("grüß".encode()).text == "grüß"
    assert received(None).text == ""
    assert received(b'{"id": 1}').json() == {"id": 1}
    assert received(b'{"id": 1}').json(Order) == Order(1)
    assert received(b"[1, 2]").json(list[int]) == [1, 2]
    assert received(b"{}").json(Model).text == b"{}"


def test_what_is_not_what_it_is_read_as_names_the_message() -> None:
    for read in (lambda: received(b"\xff").text, received(b"{").json, lambda: received(b'{"id": "x"}').json(Order)):
        with pytest.raises(Undecodable, match="orders:1:7"):
            read()
    with pytest.raises(Undecodable, match="the reply"):
        Reply(b"{", []).json()
