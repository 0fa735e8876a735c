"""Regular expressions that come from outside, in the syntax of RE2, as Kafka has them.

Python's own `re` backtracks: one pattern of thirty characters can keep it busy for years. RE2 takes time in proportion
to the text, whatever the pattern; what it cannot do (looking around, referring back) it refuses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from headrace.model.errors import InvalidRegularExpression

PATTERN_LENGTH_MAX = 1024
_MEMORY_BYTES_MAX = 1 << 20


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """An object with `fullmatch(text)`; raises `InvalidRegularExpression` for what cannot be used."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidRegularExpression(f"a pattern of {len(pattern)} characters; {PATTERN_LENGTH_MAX} may be")
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        (reason,) = error.args
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise InvalidRegularExpression(f"`{pattern}` is not a regular expression that RE2 knows: {why}") from error
