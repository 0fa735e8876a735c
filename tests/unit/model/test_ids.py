"""Ids of messages as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidRequest
from headrace.model.ids import MessageId, message_id_from_text


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_an_id_reads_back(topic: str, partition: int, offset: int) -> None:
    message_id = MessageId(topic, partition, offset)
    assert message_id_from_text(str(message_id)) == message_id


def test_an_id_carries_its_place() -> None:
    assert str(MessageId("orders", 3, 17)) == "orders:3:17"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders:1",
        ":1:2",
        "orders:-1:2",
        "a:b:1:2",
        "a:1:2:",
        "a:1:99999999999999999999",
        "a:4294967296:0",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="<topic>:<partition>:<offset>"):
        message_id_from_text(text)
