"""Altered batches, straight at the C function: python -m tests.unit.columns.mutations [COUNT [SEED]].

Behind each is an unreadable page. What is made of it must be arrays that pyarrow finds sound, or a typed error.
"""

from __future__ import annotations

import random
import resource
import sys

from tests.unit.native.mutations import SEEDS, Fenced, mutated

from headrace.columns.native import NativeRows, library
from headrace.columns.schema import COLUMNS
from headrace.model.errors import HeadraceError

_fenced = Fenced()


def survives(batch: bytearray) -> bool:
    """Whether the library found records in it; anything but arrays or a typed error raises."""
    native = library()
    assert native is not None
    rows = NativeRows(native, COLUMNS)
    data = _fenced.with_bytes(batch)
    try:
        at = rows.add_uncompressed(data, 0, 0, 1 << 40, 1 << 16, 1 << 24)
    except HeadraceError:
        return False
    assert at in {0, len(data)}
    count = rows.rows
    for array in rows.take().values():
        array.validate(full=True)
        assert len(array) == count
    return count > 0


def main(count: int, seed: int) -> None:
    chance = random.Random(seed)
    found = sum(survives(mutated(chance, chance.choice(SEEDS))) for _ in range(count))
    held_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(f"{count} altered batches, {found} of them still with records; {held_kb} KB of memory\n")


if __name__ == "__main__":
    main(*(int(argument) for argument in (sys.argv[1:] + ["300000", "1"][len(sys.argv) - 1 :])))
