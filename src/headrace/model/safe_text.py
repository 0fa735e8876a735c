"""Escape untrusted text for display in error messages, logs and terminals.

Names, keys, headers and reasons come from clients. Unescaped, an escape sequence would control the terminal that
displays it, a line break would forge a log line, and a bidirectional override would reorder the displayed text.
"""

from __future__ import annotations

import re

_SHOWN_LENGTH = 100
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROLS = f"\x7f-\x9f\u2028\u2029{_DIRECTIONS}"
_UNSAFE = f"[\x00-\x1f{_CONTROLS}\ud800-\udfff]"  # compiled on first use: most text is printable
_UNSAFE_IN_JSON = f"[{_CONTROLS}]"


def shortened(text: str) -> str:
    """Truncate the text to a length that fits into an error message."""
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."


def escaped(text: str, keep: str = "") -> str:
    """Escape all control characters except those in `keep`, as `\\n`, `\\x1b` or `\\u202e`."""
    if text.isprintable():
        return text

    def shown(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode()

    return re.sub(_UNSAFE, shown, text)


def escaped_json(document: str) -> str:
    """Escape the control characters that JSON permits unescaped; the document keeps its meaning."""
    if document.isprintable():
        return document
    return re.sub(_UNSAFE_IN_JSON, lambda found: f"\\u{ord(found[0]):04x}", document)
