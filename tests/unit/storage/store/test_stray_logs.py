"""Logs that the registry does not know: kept, moved back when it knows them again, and deleted only on request."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.unit.storage.log_harness import DATA, NO_DERIVED_STATE, TOPIC, LogHarness, create_log

from headrace.model.registry_records import TopicRecord
from headrace.storage.config import LogConfig
from headrace.storage.store.log_store import LogStore, Opening, open_store
from headrace.storage.store.stray_logs import purge_strays, stray_logs
from headrace.storage.store.topic_files import decode_topic_file, encode_topic_file, read_topic_files
from headrace.testkit.disk import SimulatedPowerCut

RECORD = TopicRecord(name="orders", id=TOPIC, partitions=2, configs={"retention.ms": "5"}, created_ms=7)
LOG_NAME = f"{TOPIC.hex}-0"


def reopened(bench: LogHarness) -> LogStore:
    """After a power cut: only what is durable is there."""
    bench.cut_power()
    return bench.run(open_store(bench.world.disk, DATA, bench.world.clock))


def stopped_with_records() -> LogHarness:
    bench = LogHarness()
    bench.append_many(5)
    bench.run(bench.store.topic_files.keep([RECORD]))
    bench.stop()
    return bench


def test_an_unwanted_log_is_kept_as_stray_with_the_record_of_its_topic() -> None:
    bench = stopped_with_records()
    store = reopened(bench)
    bench.run(store.open_all(lambda *_: None))
    disk = bench.world.disk
    assert (disk.list(f"{DATA}/logs"), disk.list(f"{DATA}/stray")) == ([], [LOG_NAME, f"{TOPIC.hex}.json"])
    assert (store.strays.size.logs, store.strays.size.size_bytes > 0) == (1, True)
    assert read_topic_files(disk, f"{DATA}/stray") == {TOPIC: RECORD}


def test_a_stray_log_is_moved_back_with_all_its_records_when_it_is_wanted_again() -> None:
    bench = stopped_with_records()
    bench.run(reopened(bench).open_all(lambda *_: None))
    store = reopened(bench)
    bench.run(store.open_all(lambda *_: Opening(LogConfig(), NO_DERIVED_STATE)))
    log = store.logs[TOPIC, 0]
    assert (log.end_offset, log.flushed_offset, log.quarantined) == (5, 5, None)
    assert bench.world.disk.list(f"{DATA}/stray") == []
    assert store.strays.size.logs == 0


def test_a_stray_log_whose_topic_was_deleted_is_deleted_at_the_next_start() -> None:
    bench = stopped_with_records()
    bench.run(reopened(bench).open_all(lambda *_: None))
    bench.run(reopened(bench).open_all(lambda *_: None, {TOPIC}))
    assert bench.world.disk.list(f"{DATA}/stray") == []


def test_a_second_stray_log_of_the_same_partition_does_not_replace_the_first() -> None:
    bench = stopped_with_records()
    store = reopened(bench)
    bench.run(store.open_all(lambda *_: None))
    bench.run(create_log(store, TOPIC, 0, Opening(LogConfig(), NO_DERIVED_STATE)))
    bench.run(store.move_all_to_stray([(TOPIC, 0)]))
    assert [log.name for log in stray_logs(bench.world.disk, DATA)] == [LOG_NAME, f"{LOG_NAME}.2"]
    assert (TOPIC, 0) not in store.logs
    purge_strays(bench.world.disk, DATA, stray_logs(bench.world.disk, DATA))
    assert bench.world.disk.list(f"{DATA}/stray") == []


@pytest.mark.parametrize("operations", range(1, 30))
def test_a_power_cut_while_logs_become_stray_or_come_back_loses_nothing(operations: int) -> None:
    bench = stopped_with_records()

    def interrupted(opening: Opening | None) -> None:
        store = reopened(bench)
        bench.world.disk.crash_after(operations)
        with suppress(SimulatedPowerCut):
            bench.run(store.open_all(lambda *_: opening))

    interrupted(None)
    interrupted(Opening(LogConfig(), NO_DERIVED_STATE))
    store = reopened(bench)
    bench.run(store.open_all(lambda *_: Opening(LogConfig(), NO_DERIVED_STATE)))
    assert (store.logs[TOPIC, 0].end_offset, store.logs[TOPIC, 0].quarantined) == (5, None)
    assert stray_logs(bench.world.disk, DATA) == []


def test_a_damaged_topic_file_is_skipped() -> None:
    data = encode_topic_file(RECORD)
    assert decode_topic_file(data) == RECORD
    for position in range(len(data) - 1):
        assert decode_topic_file(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]) is None
    assert decode_topic_file(data[:20]) is None
    assert decode_topic_file(b"") is None
