"""Ids as text.

- A UUID (topic id, cluster id) is 22 characters of URL-safe base64, as in Kafka.
- A message id is `<topic>:<partition>:<offset>`, the permanent position of a message. Topic names contain no colon, so
  an id has exactly one interpretation.
"""

from __future__ import annotations

import base64
import uuid
from typing import NamedTuple

from headrace.model.errors import InvalidRequest

ZERO_ID = uuid.UUID(int=0)
"""Means "no topic id" on the wire."""


def id_to_text(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


_PARTITION_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1
_DIGITS_MAX = 19


class MessageId(NamedTuple):
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


def message_id_from_text(text: str) -> MessageId:
    """Raise `InvalidRequest` for text that is not a message id."""
    topic, *numbers = text.split(":")
    if topic and len(numbers) == 2 and all(_is_number(number) for number in numbers):
        parsed = MessageId(topic, *map(int, numbers))
        if parsed.partition <= _PARTITION_MAX and parsed.offset <= _OFFSET_MAX:
            return parsed
    raise InvalidRequest(f"'{text}' is not a message id; write <topic>:<partition>:<offset>")


def _is_number(text: str) -> bool:
    # int() alone would also accept "+1", "1_000" and thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
