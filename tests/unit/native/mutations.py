"""Altered batches, straight at the C function: python -m tests.unit.native.mutations [COUNT [SEED]].

Each is given a copy of memory of exactly its size that ends where an unreadable page begins, so that one byte read
beyond it ends the process. What is said of it must be what Python says.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from typing import Final

from headrace.model.errors import HeadraceError
from headrace.native.soundness import is_surely_sound
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord, build_batch, check_crc, parse_header, set_crc
from headrace.wire.batches.record_checks import check_records
from headrace.wire.codec.primitives import varint

SEEDS: Final = [
    bytes(build_batch([BatchRecord(b"k", b"v", [("n", b"c"), ("m", None)], 5), BatchRecord(None, None, (), 7)])),
    bytes(build_batch([BatchRecord(b"key", b"v" * 200, [("name", b"c" * 70)] * 3, n) for n in range(20)])),
    bytes(build_batch([BatchRecord(None, b"", (), 1 << n) for n in range(40)])),
]
_EDGES: Final = [varint(number) for number in (-(1 << 63), -2, -1, 0, 1, 63, 64, 8191, 1 << 31, (1 << 63) - 1)]
_PAGE: Final = mmap.PAGESIZE
_NO_ACCESS: Final = 0


def mutated(chance: random.Random, seed: bytes) -> bytearray:
    """A batch with a right checksum whose records, or their count, are altered."""
    batch = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(HEADER_SIZE, len(batch)) if len(batch) > HEADER_SIZE else HEADER_SIZE
        kind = chance.randrange(5)
        if kind == 0 and at < len(batch):
            batch[at] = chance.randrange(256)
        elif kind == 1:
            edge = chance.choice(_EDGES)
            batch[at : at + chance.choice([0, 1, len(edge)])] = edge
        elif kind == 2:
            del batch[at : at + chance.randrange(8)]
        elif kind == 3:
            batch[at:at] = chance.randbytes(chance.randrange(4))
        else:
            batch[57:61] = chance.choice([0, 1, 2, 3, 1000, (1 << 31) - 1]).to_bytes(4, "big")
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    set_crc(memoryview(batch))
    return batch


class Fenced:
    """Memory whose last byte is followed by a page that nobody may touch."""

    def __init__(self) -> None:
        self._size = 64 * _PAGE
        self._memory = mmap.mmap(-1, self._size + _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        mprotect = ctypes.CDLL(None).mprotect
        mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert mprotect(start + self._size, _PAGE, _NO_ACCESS) == 0

    def with_bytes(self, data: bytearray) -> memoryview:
        first = self._size - len(data)
        self._memory[first : self._size] = data
        return memoryview(self._memory)[first : self._size]


_fenced = Fenced()


def is_accepted(batch: bytes | bytearray, *, keys_required: bool = False) -> bool:
    """What Python says of it."""
    try:
        header = parse_header(batch)
        sealed = check_crc(memoryview(batch), header)
        check_records(sealed, header, keys_required=keys_required, size_bytes_max=1 << 24)
    except HeadraceError:
        return False
    return True


def agrees(batch: bytearray, *, keys_required: bool) -> bool:
    """Whether both find it sound; asserts that they say the same."""
    accepted = is_accepted(batch, keys_required=keys_required) and parse_header(batch).record_count > 0
    assert is_surely_sound(_fenced.with_bytes(batch), keys_required=keys_required) == accepted, bytes(batch).hex()
    return accepted


def main(count: int, seed: int) -> None:
    chance = random.Random(seed)
    found = sum(
        agrees(mutated(chance, chance.choice(SEEDS)), keys_required=chance.random() < 0.2) for _ in range(count)
    )
    sys.stdout.write(f"{count} altered batches, {found} of them still sound\n")


if __name__ == "__main__":
    main(*(int(argument) for argument in (sys.argv[1:] + ["300000", "1"][len(sys.argv) - 1 :])))
