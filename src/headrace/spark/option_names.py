"""The names of the options, and what to say about one that is not among them.

Spark does not tell `subscribe` from `SUBSCRIBE`. Options that begin with `kafka.` are those of a Kafka consumer: few
mean something to this source; of the others those that do no harm are accepted, so that a job moves over as it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from headrace.model.errors import InvalidConfig

OWN = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    "onDataLoss",
    "archive",
    "groupIdPrefix",
    "groupId",
    "columns",
    "valueFormat",
    "valueSchema",
    "onBadValue",
    "kafka.bootstrap.servers",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.security.protocol",
    "kafka.client.id",
)

NEEDLESS = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    *(
        f"kafka.{name}"
        for name in (
            "allow.auto.create.topics",
            "auto.commit.interval.ms",
            "check.crcs",
            "client.dns.lookup",
            "client.rack",
            "connections.max.idle.ms",
            "default.api.timeout.ms",
            "enable.metrics.push",
            "exclude.internal.topics",
            "fetch.max.bytes",
            "fetch.max.wait.ms",
            "fetch.min.bytes",
            "group.instance.id",
            "group.protocol",
            "heartbeat.interval.ms",
            "max.partition.fetch.bytes",
            "max.poll.interval.ms",
            "max.poll.records",
            "metadata.max.age.ms",
            "metadata.recovery.strategy",
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
            "partition.assignment.strategy",
            "receive.buffer.bytes",
            "reconnect.backoff.max.ms",
            "reconnect.backoff.ms",
            "request.timeout.ms",
            "retry.backoff.max.ms",
            "retry.backoff.ms",
            "send.buffer.bytes",
            "session.timeout.ms",
            "socket.connection.setup.timeout.max.ms",
            "socket.connection.setup.timeout.ms",
        )
    ),
)

REFUSED = {
    "kafka.auto.offset.reset": "say where to start with startingOffsets",
    "kafka.enable.auto.commit": "Spark keeps the offsets in its checkpoint, and the source commits them",
    "kafka.key.deserializer": "keys come as bytes",
    "kafka.value.deserializer": "values come as bytes, or as valueFormat says",
    "kafka.interceptor.classes": "there is no Kafka consumer for it to look into",
    "path": "name topics with subscribe",
    "topic": "a source takes subscribe",
}

_SECURITY = ("kafka.ssl.", "kafka.sasl.", "kafka.security.providers")


def checked(
    options: Mapping[str, str],
    own: Sequence[str] = OWN,
    needless: Sequence[str] = NEEDLESS,
    refused: Mapping[str, str] = REFUSED,
    what: str = "source",
) -> dict[str, str]:
    """The options by their lower-case names; raises InvalidConfig for one that cannot be meant."""
    known = {name.lower(): name for name in (*own, *needless)}
    given = {name.lower(): value.strip() for name, value in options.items()}
    for name in given:
        if name in refused:
            raise InvalidConfig(f"the option {name} cannot be set: {refused[name]}")
        if name.startswith(_SECURITY):
            raise InvalidConfig(f"the option {name} cannot be used: this {what} speaks neither TLS nor SASL")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; is {known[near[0]]} meant?" if near else ""
            raise InvalidConfig(f"there is no option {name!r}{hint}")
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise InvalidConfig(f"kafka.security.protocol is {protocol}: this {what} speaks neither TLS nor SASL")
    return given
