"""Which names topics and groups may have.

The rules are Kafka's, so that what one system accepts the other does. Names never reach the file system:
folders are named by topic id.
"""

from __future__ import annotations

import re

from headrace.model.errors import InvalidGroupId, InvalidTopic

TOPIC_NAME_LENGTH_MAX = 249
CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
ACKS_PREFIX = "__acks."
DELAYED_PREFIX = "__delayed."
COMPANION_PREFIXES = (ACKS_PREFIX, DELAYED_PREFIX)
DEAD_LETTER_SUFFIX = ".dlq"

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> str:
    """Return the name, or raise `InvalidTopic` saying which rule it breaks."""
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
    """Return the group id, or raise `InvalidGroupId`: any text will do, but no text will not."""
    if not group_id:
        raise InvalidGroupId("The group id is empty; set group.id")
    return group_id


def is_internal(topic: str) -> bool:
    """Internal topics belong to the broker: clients read them, but do not create or delete them."""
    return topic in INTERNAL_TOPICS or topic.startswith(COMPANION_PREFIXES)


def owner_of(topic: str) -> str | None:
    """The topic whose companion this one is, or None if it stands for itself."""
    for prefix in COMPANION_PREFIXES:
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def acks_topic(topic: str) -> str:
    """The companion in which the subscriptions of a topic keep what was settled."""
    return ACKS_PREFIX + topic


def delayed_topic(topic: str) -> str:
    """The companion in which messages wait until they are due in the topic."""
    return DELAYED_PREFIX + topic


def dead_letter_topic(topic: str) -> str:
    """Where messages of a topic end that nobody could work on."""
    return topic + DEAD_LETTER_SUFFIX
