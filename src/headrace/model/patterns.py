"""Compile regular expressions from clients, in RE2 syntax as in Kafka.

Python's `re` backtracks: a pattern of thirty characters can take years. RE2 runs in time linear in the length of the
text, whatever the pattern. It rejects lookaround and backreferences, which it does not support.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from headrace.model.errors import InvalidRegularExpression

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
