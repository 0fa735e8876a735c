"""The topics in the metadata of a consumer-group member.

Members of protocol type "consumer" send their subscription as metadata: i16 version, then an array of topic
names; what follows differs by version and by client, and not all clients write it as the version says. So only
the common beginning is read, not the whole message (`wire.consumer_protocol`), and metadata that cannot be
read is no error: the names only tell which committed offsets are still of use.
"""

from __future__ import annotations

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None when the bytes are not a subscription."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        position = _HEAD.size
        topics = set()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.add(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
