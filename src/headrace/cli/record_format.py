"""The format string of `consume -f`.

%t topic  %p partition  %o offset  %T timestamp (ms)  %k key  %s value  %h headers (a=1,b=2)
%K length of the key  %S length of the value  %% a percent sign  \\n \\t \\r \\0 \\\\ as usual
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.fetch.fetched_records import ConsumedRecord

Piece = Callable[[ConsumedRecord], bytes]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FIELDS: dict[str, Piece] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
}


def compile_format(text: str) -> Piece:
    """Compile to a function that formats a record as bytes; raise ValueError for an unknown field."""
    pieces: list[bytes | Piece] = []
    position = 0
    while position < len(text):
        sign = text[position]
        if sign not in "%\\":
            pieces.append(sign.encode())
            position += 1
            continue
        name = text[position + 1 : position + 2]
        pieces.append(_field(name) if sign == "%" else _escape(name))
        position += 2
    return lambda record: b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)


def _field(name: str) -> bytes | Piece:
    if name == "%":
        return b"%"
    if name not in _FIELDS:
        raise ValueError(f"unknown field %{name}; known are {' '.join('%' + known for known in _FIELDS)} %%")
    return _FIELDS[name]


def _escape(name: str) -> bytes:
    if name not in _ESCAPES:
        raise ValueError(f"unknown escape \\{name}; known are {' '.join(chr(92) + known for known in _ESCAPES)}")
    return _ESCAPES[name]
