"""Access tokens: how they are written, what is kept of them, and what their scopes allow.

    hr_<id>_<secret>       the id is known to everybody, the secret to its holder alone; brokers keep a hash of it
    <verb>:<pattern>       a scope: publish:orders, consume:orders.*, manage:*

A pattern is a topic's name, or its beginning with a `*` at the end. A verb allows just what it says, but for `manage`,
which allows all verbs on its topics. What belongs to no topic needs a scope on `*`. The broker's own topics need
`manage`: whoever reads them sees through the scopes on all others.
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

# Compiled when they are first used: a broker starts without them.
_TOKEN: Final = r"hr_([a-zA-Z0-9]{1,64})_([a-zA-Z0-9_-]{1,120})"
_TOKEN_ID: Final = r"[a-zA-Z0-9]{1,64}"
_PATTERN: Final = r"[a-zA-Z0-9._-]*\*?"


class InvalidScope(InvalidRequest):
    """A scope is written VERB:TOPIC, such as publish:orders, consume:orders.* or manage:*."""


class Scope(msgspec.Struct, frozen=True):
    verb: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.verb}:{self.pattern}"

    def allows(self, verb: str, topic: str | None) -> bool:
        """Whether this is enough to do `verb` with the topic, or, if that is None, with what belongs to none."""
        if topic is not None and is_internal(topic):
            verb = MANAGE
        return self.verb in (verb, MANAGE) and self._covers(topic)

    def _covers(self, topic: str | None) -> bool:
        if topic is None:
            return self.pattern == "*"
        if self.pattern.endswith("*"):
            return topic.startswith(self.pattern[:-1])
        return topic == self.pattern


def needed_scope(verb: str, topic: str | None) -> Scope:
    """The narrowest scope that allows this."""
    if topic is None:
        return Scope(verb, "*")
    return Scope(MANAGE if is_internal(topic) else verb, topic)


def parse_scope(text: str) -> Scope:
    verb, separator, pattern = text.partition(":")
    if not separator or verb not in VERBS:
        raise InvalidScope(
            f"'{text[:300]}' is not a scope; write {', '.join(VERBS[:-1])} or {MANAGE}, a colon, a topic"
        )
    if not pattern or len(pattern) > TOPIC_NAME_LENGTH_MAX + 1 or re.fullmatch(_PATTERN, pattern) is None:
        raise InvalidScope(f"'{pattern[:300]}' is no topic's name, nor the beginning of one with a * at the end")
    return Scope(verb, pattern)


def write_token(token_id: str, secret: str) -> str:
    return f"hr_{token_id}_{secret}"


def parse_token(text: str) -> tuple[str, str] | None:
    """Its id and its secret; None if this is no token."""
    found = re.fullmatch(_TOKEN, text) if len(text) <= TOKEN_LENGTH_MAX else None
    return None if found is None else (found[1], found[2])


def is_token_id(text: str) -> bool:
    return re.fullmatch(_TOKEN_ID, text) is not None


def hash_secret(secret: str) -> bytes:
    """A plain hash will do: a secret of 256 random bits cannot be guessed, however fast each guess is."""
    return sha256(secret.encode()).digest()
