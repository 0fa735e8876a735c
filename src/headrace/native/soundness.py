"""Whether a produced batch is sound, asked of the compiled library: it takes the bytes where they lie.

A yes means that `wire.batch.check_crc` and `wire.records.check_records` would let the batch pass. A no means nothing:
it is also the answer where there is no library, and to whatever is unusual. So the rules, and what is said of a batch
that breaks one, are in Python, once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

# A batch of this size takes 8 us. Longer ones let other threads run meanwhile.
_LOCK_KEPT_BYTES_MAX: Final = 1 << 16


class _Calls(NamedTuple):
    hold: Callable[[memoryview], Any]  # keeps the bytes in their place for as long as the result lives
    address_of: Callable[[Any], int]
    quick: Callable[[int, int, bool], int]
    long: Callable[[int, int, bool], int]


def is_surely_sound(batch: memoryview, *, keys_required: bool) -> bool:
    calls = _calls()
    if calls is None or batch.readonly or not batch:
        return False
    hold, address_of, quick, long = calls
    size = len(batch)
    held = hold(batch)
    check = quick if size <= _LOCK_KEPT_BYTES_MAX else long
    return check(address_of(held), size, keys_required) == 1


@cache
def _calls() -> _Calls | None:
    # By the first batch, since the start of a broker must not wait for ctypes.
    from ctypes import addressof, c_bool, c_char, c_int, c_int64, c_void_p

    from headrace.native.library import library

    found = library()
    if found is None or not found.has_crc32c:
        return None
    signature = "headrace_is_sound", c_int, c_void_p, c_int64, c_bool
    return _Calls(
        c_char.from_buffer,
        addressof,
        found.function(*signature, keeps_lock=True),
        found.function(*signature),
    )
