"""Metrics of the process, its listeners and its storage.

- Process: memory, file descriptors, CPU time and event loop lag, under the standard names.
- Kafka and HTTP listeners, push: connections, requests, latencies and rejections.
- Disks and logs: fsync latency, log cleaner, free space, and failed logs.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.broker.broker import Broker
from headrace.broker.handlers import RequestHandlers
from headrace.http.listener import HttpListener
from headrace.protocols.kafka.listener import KafkaServer
from headrace.runtime.clock import Clock
from headrace.runtime.tasks import CooperativeYield
from headrace.server.event_loop import LoopLag
from headrace.server.metrics.exposition import Exposition, format_labels

if TYPE_CHECKING:
    from headrace.push.webhook_pusher import WebhookStatus

_STATM = "/proc/self/statm"
_DESCRIPTORS = "/proc/self/fd"


def add_process(out: Exposition, clock: Clock, started: float, loop_lag: LoopLag) -> None:
    """`started` is a time of the monotonic clock."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    uptime = clock.monotonic() - started
    python = ".".join(map(str, sys.version_info[:3]))
    out.add("headrace_build_info", 1, format_labels(version=__version__, python=python))
    out.add("headrace_uptime_seconds", round(uptime, 3))
    out.add("process_start_time_seconds", round(clock.now_ms() / 1000 - uptime, 3))
    out.add("process_cpu_seconds_total", round(usage.ru_utime + usage.ru_stime, 6))
    out.add("process_max_resident_memory_bytes", usage.ru_maxrss * 1024)
    out.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    out.add_histogram("headrace_loop_lag_seconds", loop_lag.seconds)
    if os.path.exists(_STATM):  # Linux only
        with open(_STATM, encoding="ascii") as file:
            pages, resident_pages, *_ = map(int, file.read().split())
        page_bytes = resource.getpagesize()
        out.add("process_virtual_memory_bytes", pages * page_bytes)
        out.add("process_resident_memory_bytes", resident_pages * page_bytes)
        # Since Linux 6.2 the count is the size of the folder; listing thousands of entries would block the event loop.
        out.add("process_open_fds", os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS)))


CIRCUIT_STATES = ("closed", "half-open", "open")


def add_kafka(out: Exposition, handlers: RequestHandlers, server: KafkaServer) -> None:
    out.add("kafka_server_socket_server_metrics_connection_count", len(server.connections))
    out.add("headrace_connections_accepted_total", server.accepted)
    out.add("headrace_connections_turned_away_total", server.rejected_connections)
    out.add("headrace_frames_refused_total", server.malformed_connections)
    out.add("headrace_requests_failed_total", server.failures)
    out.add("headrace_request_bytes_held", server.budget.taken)
    for handler in handlers:
        if handler.time.count:
            out.add_histogram("headrace_request_duration_seconds", handler.time, format_labels(api=handler.api.name))


def add_http(out: Exposition, server: HttpListener) -> None:
    out.add("headrace_http_connections", len(server.connections))
    out.add("headrace_http_connections_accepted_total", server.accepted)
    out.add("headrace_http_connections_turned_away_total", server.rejected_connections)
    for digit, count in enumerate(server.requests):
        if digit > 1:
            out.add("headrace_http_requests_total", count, format_labels(status=f"{digit}xx"))
    out.add("headrace_http_requests_refused_total", server.refused)
    out.add("headrace_http_requests_failed_total", server.failures)
    out.add("headrace_http_received_bytes_total", server.bytes_in)
    out.add("headrace_http_sent_bytes_total", server.bytes_out)
    out.add_histogram("headrace_http_request_duration_seconds", server.durations)


def add_pushes(out: Exposition, pushes: Iterable[WebhookStatus]) -> None:
    for push in pushes:
        label = format_labels(subscription=push.subscription, topic=push.topic)
        out.add("headrace_push_in_flight", push.in_flight, label)
        out.add("headrace_push_delivered_total", push.delivered, label)
        out.add("headrace_push_failed_total", push.failed, label)
        out.add("headrace_push_rejected_total", push.rejected, label)
        for state in CIRCUIT_STATES:
            where = format_labels(subscription=push.subscription, topic=push.topic, state=state)
            out.add("headrace_push_circuit_state", int(push.circuit == state), where)


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
    out.add("headrace_disk_free_bytes", store.space.free_bytes)
    out.add("headrace_produce_refused_for_space", int(store.space.exhausted))
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
