"""Check with the compiled library whether a produced batch is sound, without copying its bytes.

True means that `check_crc` and `check_records` would accept the batch. False means nothing: it is also the result
without the library and for anything unusual. So the rules and their error messages exist once, in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

# A batch of this size takes 8 us. For larger ones the call releases the interpreter lock.
_LOCK_KEPT_BYTES_MAX: Final = 1 << 16


class _Calls(NamedTuple):
    hold: Callable[[memoryview], Any]  # pins the buffer for as long as the result exists
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
    # Imported with the first batch, because ctypes would slow down the start of a broker.
    from ctypes import addressof, c_bool, c_char, c_int, c_int64, c_void_p

    from headrace.native.library import library

    found = library()
    if found is None or not found.has_crc32c:
        return None
    signature = "headrace_is_sound", c_int, c_void_p, c_int64, c_bool
    quick, long = found.function(*signature, keeps_lock=True), found.function(*signature)
    return _Calls(c_char.from_buffer, addressof, quick, long)
