"""Decoding messages: bytes, text, JSON, and types of the application."""

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
    """A class with the interface of a pydantic model."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @classmethod
    def model_validate_json(cls, text: bytes) -> Model:
        return cls(text)


def received(value: bytes | None, key: bytes | None = None) -> Received:
    return Received(MessageId("orders", 1, 7), 1000, key, value, [("a", b"1"), ("a", b"2"), ("b", None)])


def test_a_message_has_its_position_and_publish_time() -> None:
    message = received(b"x", b"c-42")
    assert str(message.id) == "orders:1:7"
    assert (message.topic, message.partition, message.offset) == ("orders", 1, 7)
    assert (message.key, message.raw_key) == ("c-42", b"c-42")
    assert message.published_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert repr(message) == "<Received orders:1:7>"


def test_of_headers_with_the_same_name_the_last_counts() -> None:
    assert received(b"").headers == {"a": "2", "b": ""}
    assert list(received(b"").raw_headers) == [("a", b"1"), ("a", b"2"), ("b", None)]


def test_a_value_is_decoded_as_text_json_or_a_type() -> None:
    assert received("grüß".encode()).text == "grüß"
    assert received(None).text == ""
    assert received(b'{"id": 1}').json() == {"id": 1}
    assert received(b'{"id": 1}').json(Order) == Order(1)
    assert received(b"[1, 2]").json(list[int]) == [1, 2]
    assert received(b"{}").json(Model).text == b"{}"


def test_a_decoding_error_names_the_message() -> None:
    for read in (lambda: received(b"\xff").text, received(b"{").json, lambda: received(b'{"id": "x"}').json(Order)):
        with pytest.raises(Undecodable, match="orders:1:7"):
            read()
    with pytest.raises(Undecodable, match="the reply"):
        Reply(b"{", []).json()
