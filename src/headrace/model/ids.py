"""Ids as text: a UUID in 22 characters of URL-safe base64, Kafka's format of topic and cluster ids."""

from __future__ import annotations

import base64
import binascii
import uuid

from headrace.model.errors import InvalidRequest

ZERO_ID = uuid.UUID(int=0)
"""Means "no topic id" on the wire."""


def id_to_text(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def id_from_text(text: str) -> uuid.UUID:
    """Raise `InvalidRequest` for text that `id_to_text` does not produce."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raw = b""
    if len(raw) != 16 or len(text) != 22:
        raise InvalidRequest(f"'{text}' is not an id; expected 22 characters of URL-safe base64")
    return uuid.UUID(bytes=raw)
