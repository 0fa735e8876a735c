"""Access tokens and their scopes.

    hr_<id>_<secret>       a token: the id is public, the secret is not; brokers store only a hash of the secret
    <verb>:<pattern>       a scope: publish:orders, consume:orders.*, manage:*

A pattern is a topic name, or a prefix followed by `*`. A verb permits only that operation, except `manage`, which
permits all operations on its topics. Operations that concern no topic require a scope on `*`. Internal topics require
`manage`: they contain data of all topics, so read access to them would bypass the scopes of those topics.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

import msgspec

from headrace.model.errors import InvalidRequest
from headrace.model.names import TOPIC_NAME_LENGTH_MAX, is_internal

MANAGE: Final = "manage"
VERBS: Final = ("publish", "consume", "read", "metrics", MANAGE)
SECRET_BYTES: Final = 32
TOKEN_LENGTH_MAX: Final = 200

# Compiled on first use: keeps startup fast.
_TOKEN: Final = r"hr_([a-zA-Z0-9]{1,64})_([a-zA-Z0-9_-]{1,120})"
_TOKEN_ID: Final = r"[a-zA-Z0-9]{1,64}"
_PATTERN: Final = r"[a-zA-Z0-9._-]*\*?"


class InvalidScope(InvalidRequest):
    """The scope is invalid; write VERB:TOPIC, such as publish:orders, consume:orders.* or manage:*."""


class Scope(msgspec.Struct, frozen=True):
    verb: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.verb}:{self.pattern}"

    def allows(self, verb: str, topic: str | None) -> bool:
        """Whether this scope permits `verb` on the topic, or on something that belongs to no topic if it is None."""
        if topic is not None and is_internal(topic):
            verb = MANAGE
        if self.verb not in (verb, MANAGE):
            return False
        if topic is None:
            return self.pattern == "*"
        if self.pattern.endswith("*"):
            return topic.startswith(self.pattern[:-1])
        return topic == self.pattern


def needed_scope(verb: str, topic: str | None) -> Scope:
    """Return the narrowest scope that permits the operation."""
    if topic is None:
        return Scope(verb, "*")
    return Scope(MANAGE if is_internal(topic) else verb, topic)


def parse_scope(text: str) -> Scope:
    verb, separator, pattern = text.partition(":")
    if not separator or verb not in VERBS:
        raise InvalidScope(
            f"'{text[:300]}' is not a scope; write VERB:TOPIC with one of the verbs {', '.join(VERBS[:-1])} or {MANAGE}"
        )
    if not pattern or len(pattern) > TOPIC_NAME_LENGTH_MAX + 1 or re.fullmatch(_PATTERN, pattern) is None:
        raise InvalidScope(f"'{pattern[:300]}' is neither a topic name nor a prefix followed by *")
    return Scope(verb, pattern)


def write_token(token_id: str, secret: str) -> str:
    return f"hr_{token_id}_{secret}"


def parse_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret, or None if the text is not a token."""
    found = re.fullmatch(_TOKEN, text) if len(text) <= TOKEN_LENGTH_MAX else None
    return None if found is None else (found[1], found[2])


def is_token_id(text: str) -> bool:
    return re.fullmatch(_TOKEN_ID, text) is not None


def hash_secret(secret: str) -> bytes:
    """Hash without salt or stretching: a secret of 256 random bits cannot be guessed at any speed."""
    return sha256(secret.encode()).digest()
