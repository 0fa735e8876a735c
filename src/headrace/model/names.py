"""Names of topics and groups: validation, derived names, and regular expressions that match them.

- The rules are Kafka's, so that both systems accept the same names. Names are not used in the file system: folders are
  named by topic id.
- Regular expressions of clients are compiled by RE2, as in Kafka. Python's `re` backtracks: a pattern of thirty
  characters can take years. RE2 runs in time linear in the length of the text, and rejects lookaround and
  backreferences, which it does not support.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from headrace.model.errors import InvalidGroupId, InvalidRegularExpression, InvalidTopic

TOPIC_NAME_LENGTH_MAX = 249
CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
ACKS_PREFIX = "__acks."
DELAYED_PREFIX = "__delayed."
COLOCATED_PREFIXES = (ACKS_PREFIX, DELAYED_PREFIX)
DEAD_LETTER_SUFFIX = ".dlq"

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> str:
    """Return the name, or raise `InvalidTopic` with the rule that it violates."""
    if not name:
        raise InvalidTopic("Topic name is invalid: the empty string is not allowed")
    if name in {".", ".."}:
        raise InvalidTopic(f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopic(
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{TOPIC_NAME_LENGTH_MAX}"
        )
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopic(
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return name


def check_group_id(group_id: str | None) -> str:
    """Return the group id, or raise `InvalidGroupId` if it is empty."""
    if not group_id:
        raise InvalidGroupId("The group id is empty; set group.id")
    return group_id


def is_internal(topic: str) -> bool:
    """Whether the topic belongs to the broker: clients may read such topics, but not create or delete them."""
    return topic in INTERNAL_TOPICS or topic.startswith(COLOCATED_PREFIXES)


def owner_of(topic: str) -> str | None:
    """Return the topic with which this one is co-located, or None if it is not a co-located topic."""
    for prefix in COLOCATED_PREFIXES:
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def acks_topic(topic: str) -> str:
    """Return the co-located topic in which the subscriptions of a topic store acknowledgements."""
    return ACKS_PREFIX + topic


def delayed_topic(topic: str) -> str:
    """Return the co-located topic that stores delayed messages until they are due."""
    return DELAYED_PREFIX + topic


def dead_letter_topic(topic: str) -> str:
    """Return the topic to which messages go that exhausted their delivery attempts."""
    return topic + DEAD_LETTER_SUFFIX


PATTERN_LENGTH_MAX = 1024
_MEMORY_BYTES_MAX = 1 << 20


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """Return an object with `fullmatch(text)`, or raise `InvalidRegularExpression`."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidRegularExpression(
            f"the pattern has {len(pattern)} characters; the maximum is {PATTERN_LENGTH_MAX}"
        )
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        (reason,) = error.args
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise InvalidRegularExpression(f"`{pattern}` is not a valid RE2 regular expression: {why}") from error
