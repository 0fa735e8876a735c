"""Metrics of the Kafka and HTTP listeners and of push: connections, requests, latencies and rejections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.handlers import RequestHandlers
from headrace.http.listener import HttpListener
from headrace.protocols.kafka.listener import KafkaServer
from headrace.server.metrics.exposition import Exposition, format_labels

if TYPE_CHECKING:
    from headrace.push.webhook_pusher import WebhookStatus

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
