"""The options of the sink: names, types and checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.model.errors import InvalidConfig
from headrace.model.names import check_topic_name
from headrace.spark.options import OptionErrors, brokers_of, check_options, choice, duration_seconds
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
    "checkpointLocation",  # set and passed on by Spark
)

_IGNORED_OF_KAFKA: Final = """
    acks batch.size buffer.memory client.dns.lookup client.id connections.max.idle.ms delivery.timeout.ms
    enable.idempotence enable.metrics.push linger.ms max.block.ms max.in.flight.requests.per.connection
    max.request.size metadata.max.age.ms metadata.max.idle.ms partitioner.availability.timeout.ms
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms send.buffer.bytes
"""

IGNORED: Final = (
    "includeHeaders",
    "queryName",
    *(f"kafka.{name}" for name in _IGNORED_OF_KAFKA.split()),
)

REJECTED: Final = {
    "kafka.transactional.id": "the sink names its transactions after the query",
    "kafka.transaction.timeout.ms": "set transactionTimeout instead",
    "kafka.key.serializer": "keys are text or bytes",
    "kafka.value.serializer": "values are text or bytes",
    "kafka.partitioner.class": "the key or the column partition determines the partition",
    "kafka.interceptor.classes": "the sink does not use a Kafka producer",
    "subscribe": "use topic for a sink",
    "path": "set topic to write to a topic",
}


class SinkOptions(msgspec.Struct, frozen=True):
    """`app_id` and `version` identify a batch write, so that a repetition is recognised. `app_id` is None for a
    streaming query, which has a query id and batch ids, and for a write that is not repeated."""

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
    """Parse and check the options; raises InvalidConfig, which names all errors."""
    errors = OptionErrors()
    found = _parse(options, errors, streaming=streaming)
    errors.raise_all()
    return found


def problems_of(options: Mapping[str, str], *, streaming: bool) -> Sequence[str]:
    """The errors that `parse` raises, one by one."""
    errors = OptionErrors()
    _parse(options, errors, streaming=streaming)
    return errors.messages


def _parse(options: Mapping[str, str], errors: OptionErrors, *, streaming: bool) -> SinkOptions:
    """The options; only valid if there are no errors."""
    given, read = check_options(options, errors, KNOWN, IGNORED, REJECTED, "sink"), errors.read
    topic = given.get("topic")
    app_id, version = read(lambda: _application(given, streaming=streaming), (None, 0))
    codec = read(lambda: choice(given, "kafka.compression.type", tuple(_CODECS), "none"), "none")
    delivery = read(lambda: choice(given, "delivery", (EXACTLY_ONCE, AT_LEAST_ONCE), EXACTLY_ONCE), EXACTLY_ONCE)
    return SinkOptions(
        brokers=read(lambda: brokers_of(given), ""),
        topic=None if topic is None else read(lambda: check_topic_name(topic), ""),
        exactly_once=delivery == EXACTLY_ONCE,
        transaction_timeout_seconds=read(lambda: duration_seconds(given, "transactionTimeout", "10m"), 0.0),
        keep_timestamp=read(lambda: choice(given, "keepTimestamp", ("false", "true"), "false"), "") == "true",
        batch_bytes_max=read(lambda: _number(given, "batchBytes", *_BATCH_BYTES, default=512 * 1024), 0),
        compression=_CODECS[codec],
        app_id=app_id,
        version=version,
        checkpoint=given.get("checkpointlocation"),
    )


def _application(given: Mapping[str, str], *, streaming: bool) -> tuple[str | None, int]:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if (app_id is None) != (version is None):
        raise InvalidConfig("txnAppId and txnVersion must be set together")
    if app_id is None:
        return None, 0
    if streaming:
        raise InvalidConfig("txnAppId has no meaning in a streaming query, whose batches are numbered by Spark")
    if _APP_ID.fullmatch(app_id) is None:
        raise InvalidConfig(f"txnAppId is {app_id!r}; it must be of up to 200 letters, digits, dots, dashes and _")
    return app_id, _number(given, "txnVersion", 0, (1 << 63) - 1, default=0)


def _number(given: Mapping[str, str], name: str, lowest: int, highest: int, *, default: int) -> int:
    text = given.get(name.lower(), str(default))
    if re.fullmatch(r"[0-9]{1,19}", text) is None or not lowest <= int(text) <= highest:
        raise InvalidConfig(f"{name} is {text!r}; it must be a whole number from {lowest} to {highest}")
    return int(text)
