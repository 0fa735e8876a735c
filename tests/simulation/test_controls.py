"""Negative controls: the simulation of a single broker finds each planted bug.

Each bug is one that a careless change could bring. All were found within thirty seeds when this test was written; the
number of seeds leaves room for changes to the scenario.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.simulation.scenario import NotRecovered, Scenario

from headrace.broker.coordination.state_log import StoredRecord
from headrace.broker.groups.offsets_log import OffsetsLog
from headrace.broker.partition import AppendResult, Partition, PartitionState
from headrace.storage.log.flusher import PendingFlush
from headrace.storage.log.log import Log
from headrace.storage.log.recovery import Recovery
from headrace.testkit.broker import BrokerFailed

SEEDS = 200

Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    append = Partition.append

    def append_and_show(self: Partition, *arguments: Any) -> AppendResult:
        appended = append(self, *arguments)
        self._advance(self.log.end_offset)
        return appended

    patch.setattr(Partition, "append", append_and_show)


def do_not_sync_the_folder_of_new_segments(patch: pytest.MonkeyPatch) -> None:
    begin = Log.begin_flush

    def begin_without_the_folder(self: Log) -> PendingFlush | None:
        flush = begin(self)
        if flush is not None:
            flush.directory = False
        return flush

    patch.setattr(Log, "begin_flush", begin_without_the_folder)


def forget_producers_at_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionState, "replay", lambda *_: None)


def trust_the_page_cache_after_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_write_again", lambda *_: None)


def keep_a_torn_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_end_at", lambda self, *_: self._finish())


def forget_committed_offsets_at_the_start(patch: pytest.MonkeyPatch) -> None:
    async def load_nothing(_: OffsetsLog, _partition: Partition) -> AsyncIterator[StoredRecord]:
        return
        yield StoredRecord(b"", None, None)

    patch.setattr(OffsetsLog, "load", load_nothing)


@pytest.mark.parametrize(
    "plant",
    [
        acknowledge_before_the_flush,
        do_not_sync_the_folder_of_new_segments,
        forget_producers_at_the_start,
        trust_the_page_cache_after_a_failed_sync,
        keep_a_torn_tail,
        forget_committed_offsets_at_the_start,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(finds_bug(seed) for seed in range(1, SEEDS + 1))


def finds_bug(seed: int) -> bool:
    try:
        return bool(Scenario(seed).run())
    except (
        BrokerFailed,
        NotRecovered,
        ExceptionGroup,
    ):  # the broker failed, the clients did not recover, or a client found a contradiction
        return True
