"""What a failed sync leaves behind: pages that the kernel takes for clean and that are nowhere but in its cache."""

from __future__ import annotations

import pytest
from tests.unit.storage.workbench import Workbench

from headrace.model.errors import StorageFailure


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_tail_whose_sync_failed_is_written_again_before_it_counts_as_flushed(seed: int, has_checkpoint: bool) -> None:
    bench = Workbench(seed)
    bench.append_many(5)
    if has_checkpoint:
        bench.checkpoint()
    bench.append_many(3)
    for _ in range(30):  # over several pages and segments
        bench.append(b"a batch that nobody was promised" * 10)
    bench.world.disk.fail_next("sync", "*.log")
    with pytest.raises(StorageFailure):
        bench.flush()
    bench.kill()
    bench.open()
    bench.check()
    assert bench.log.flushed_offset == len(bench.model)  # from here on it is promised
    bench.durable_end = bench.log.flushed_offset
    bench.cut_power()
    bench.open()
    bench.check()
