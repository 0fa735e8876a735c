"""Metrics of disks and logs: fsync latency, log cleaner, free space, and failed logs."""

from __future__ import annotations

from headrace.broker.broker import Broker
from headrace.runtime.tasks import CooperativeYield
from headrace.server.metrics.exposition import Exposition, format_labels


async def add_storage(out: Exposition, broker: Broker, yield_turn: CooperativeYield) -> None:
    store = broker.store
    cleaner = store.cleaner
    out.add_histogram("headrace_fsync_seconds", store.flusher.sync_seconds)
    out.add("headrace_flush_rounds_total", store.flusher.rounds)
    out.add("headrace_cleaner_passes_total", cleaner.passes)
    out.add("headrace_cleaner_passes_failed_total", cleaner.passes_failed)
    out.add("headrace_cleaner_records_read_total", cleaner.records_read)
    out.add("headrace_cleaner_records_kept_total", cleaner.records_kept)
    out.add("headrace_cleaner_bytes_read_total", cleaner.bytes_read)
    out.add("headrace_cleaner_bytes_written_total", cleaner.bytes_written)
    out.add("headrace_disk_free_bytes", store.free_bytes)
    out.add("headrace_produce_refused_for_space", int(store.is_space_exhausted))
    out.add("headrace_stray_logs", store.strays.size.logs)
    out.add("headrace_stray_bytes", store.strays.size.size_bytes)
    failed = size_bytes = 0
    for log in list(store.logs.values()):
        await yield_turn()
        size_bytes += log.size_bytes
        failed += log.failed is not None
        if log.quarantined is not None:
            report = log.quarantined
            where = format_labels(file=report.path, position=report.position, offset=report.offset)
            out.add("headrace_log_quarantined", 1, where)
    out.add("headrace_logs_bytes", size_bytes)
    out.add("headrace_logs_failed", failed)
