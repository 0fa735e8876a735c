"""Message ids: `<topic>:<partition>:<offset>`, which never changes and says where the message lies.

A topic's name has no colon, so that an id reads back in one way only.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.model.errors import InvalidRequest

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
    """Raises `InvalidRequest` for anything that is not an id."""
    topic, *numbers = text.split(":")
    if topic and len(numbers) == 2 and all(_is_number(number) for number in numbers):
        parsed = MessageId(topic, *map(int, numbers))
        if parsed.partition <= _PARTITION_MAX and parsed.offset <= _OFFSET_MAX:
            return parsed
    raise InvalidRequest(f"'{text}' is not the id of a message: <topic>:<partition>:<offset> is expected")


def _is_number(text: str) -> bool:
    # int() alone would also take "+1", "1_000", and thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
