"""What a write was told in options, checked and typed before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.model.durations import parse_duration
from headrace.model.errors import InvalidConfig
from headrace.model.names import check_topic_name
from headrace.spark.options import check_options
from headrace.wire.batches.compression import NAMES as CODEC_NAMES

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

_CODECS: Final = {name: codec for codec, name in CODEC_NAMES.items()}
_APP_ID: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_BATCH_BYTES: Final = (1024, 100 * 1024 * 1024)

KNOWN: Final = (
    "kafka.bootstrap.servers",
    "topic",
    "delivery",
    "transactionTimeout",
    "keepTimestamp",
    "batchBytes",
    "kafka.compression.type",
    "kafka.security.protocol",
    "txnAppId",
    "txnVersion",
    "checkpointLocation",  # Spark's own, which it hands on
)

IGNORED: Final = (
    "includeHeaders",
    "queryName",
    *(
        f"kafka.{name}"
        for name in (
            "acks",
            "batch.size",
            "buffer.memory",
            "client.dns.lookup",
            "client.id",
            "connections.max.idle.ms",
            "delivery.timeout.ms",
            "enable.idempotence",
            "enable.metrics.push",
            "linger.ms",
            "max.block.ms",
            "max.in.flight.requests.per.connection",
            "max.request.size",
            "metadata.max.age.ms",
            "metadata.max.idle.ms",
            "partitioner.availability.timeout.ms",
            "receive.buffer.bytes",
            "reconnect.backoff.max.ms",
            "reconnect.backoff.ms",
            "request.timeout.ms",
            "retries",
            "retry.backoff.max.ms",
            "retry.backoff.ms",
            "send.buffer.bytes",
        )
    ),
)

REJECTED: Final = {
    "kafka.transactional.id": "the sink names its transactions by the query",
    "kafka.transaction.timeout.ms": "say it with transactionTimeout",
    "kafka.key.serializer": "keys are text or bytes",
    "kafka.value.serializer": "values are text or bytes",
    "kafka.partitioner.class": "rows go where their key says, or the column partition",
    "kafka.interceptor.classes": "there is no Kafka producer for it to look into",
    "subscribe": "a sink takes topic",
    "path": "name the topic with the option topic",
}


class SinkOptions(msgspec.Struct, frozen=True):
    """`app_id` and `version`: who writes a batch and which of its writes it is, so that it can be told from a second
    try of the same; None of a streaming query, whose id and batch id say so, and of a write that nobody repeats."""

    brokers: str
    topic: str | None = None
    exactly_once: bool = True
    transaction_timeout_seconds: float = 600.0
    keep_timestamp: bool = False
    batch_bytes_max: int = 512 * 1024
    compression: int = _CODECS["none"]
    app_id: str | None = None
    version: int = 0
    checkpoint: str | None = None


def parse(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises InvalidConfig, with one sentence that says which option is wrong."""
    given = check_options(options, KNOWN, IGNORED, REJECTED, "sink")
    brokers = given.get("kafka.bootstrap.servers")
    if not brokers:
        raise InvalidConfig("say where the brokers are: kafka.bootstrap.servers is missing")
    topic = given.get("topic")
    app_id, version = _application(given, streaming=streaming)
    return SinkOptions(
        brokers=brokers,
        topic=None if topic is None else check_topic_name(topic),
        exactly_once=_choice(given, "delivery", (EXACTLY_ONCE, AT_LEAST_ONCE)) == EXACTLY_ONCE,
        transaction_timeout_seconds=parse_duration(given.get("transactiontimeout", "10m")) / 1000,
        keep_timestamp=_choice(given, "keepTimestamp", ("false", "true")) == "true",
        batch_bytes_max=_number(given, "batchBytes", *_BATCH_BYTES, default=512 * 1024),
        compression=_CODECS[_choice(given, "kafka.compression.type", tuple(_CODECS))],
        app_id=app_id,
        version=version,
        checkpoint=given.get("checkpointlocation"),
    )


def _application(given: Mapping[str, str], *, streaming: bool) -> tuple[str | None, int]:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if (app_id is None) != (version is None):
        raise InvalidConfig("txnAppId and txnVersion belong together, and one of them is missing")
    if app_id is None:
        return None, 0
    if streaming:
        raise InvalidConfig("txnAppId has no meaning in a streaming query, whose batches have numbers of their own")
    if _APP_ID.fullmatch(app_id) is None:
        raise InvalidConfig(f"txnAppId is {app_id!r}; it must be of up to 200 letters, digits, dots, dashes and _")
    return app_id, _number(given, "txnVersion", 0, (1 << 63) - 1, default=0)


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The first choice is the default."""
    text = given.get(name.lower(), choices[0])
    if text.lower() not in choices:
        raise InvalidConfig(f"{name} is {text!r}; it can be {' or '.join(choices)}")
    return text.lower()


def _number(given: Mapping[str, str], name: str, lowest: int, highest: int, *, default: int) -> int:
    text = given.get(name.lower(), str(default))
    if re.fullmatch(r"[0-9]{1,19}", text) is None or not lowest <= int(text) <= highest:
        raise InvalidConfig(f"{name} is {text!r}; it must be a whole number from {lowest} to {highest}")
    return int(text)
