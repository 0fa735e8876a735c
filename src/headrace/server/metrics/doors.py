"""Metrics of the Kafka and HTTP listeners and of push: connections, requests, latencies and rejections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.handlers import Handlers
from headrace.doors.kafka.listener import KafkaDoor
from headrace.http.listener import HttpListener
from headrace.server.metrics.exposition import Exposition, labelled

if TYPE_CHECKING:
    from headrace.push.pusher import PushStatus

CIRCUIT_STATES = ("closed", "half-open", "open")


def add_kafka(out: Exposition, handlers: Handlers, door: KafkaDoor) -> None:
    out.add("kafka_server_socket_server_metrics_connection_count", len(door.connections))
    out.add("headrace_connections_accepted_total", door.accepted)
    out.add("headrace_connections_turned_away_total", door.turned_away)
    out.add("headrace_frames_refused_total", door.refusals)
    out.add("headrace_requests_failed_total", door.failures)
    out.add("headrace_request_bytes_held", door.budget.taken)
    for handler in handlers:
        if handler.time.count:
            out.add_histogram("headrace_request_duration_seconds", handler.time, labelled(api=handler.api.name))


def add_http(out: Exposition, door: HttpListener) -> None:
    out.add("headrace_http_connections", len(door.connections))
    out.add("headrace_http_connections_accepted_total", door.accepted)
    out.add("headrace_http_connections_turned_away_total", door.turned_away)
    for digit, count in enumerate(door.requests):
        if digit > 1:
            out.add("headrace_http_requests_total", count, labelled(status=f"{digit}xx"))
    out.add("headrace_http_requests_refused_total", door.refused)
    out.add("headrace_http_requests_failed_total", door.failures)
    out.add("headrace_http_received_bytes_total", door.bytes_in)
    out.add("headrace_http_sent_bytes_total", door.bytes_out)
    out.add_histogram("headrace_http_request_duration_seconds", door.durations)


def add_pushes(out: Exposition, pushes: Iterable[PushStatus]) -> None:
    for push in pushes:
        label = labelled(subscription=push.subscription, topic=push.topic)
        out.add("headrace_push_in_flight", push.in_flight, label)
        out.add("headrace_push_delivered_total", push.delivered, label)
        out.add("headrace_push_failed_total", push.failed, label)
        out.add("headrace_push_rejected_total", push.rejected, label)
        for state in CIRCUIT_STATES:
            where = labelled(subscription=push.subscription, topic=push.topic, state=state)
            out.add("headrace_push_circuit_state", int(push.circuit == state), where)
