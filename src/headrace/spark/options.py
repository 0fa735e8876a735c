"""The options of the data source: names, types and checks.

- Names and meanings are those of Spark's Kafka source. Where that uses the first of several conflicting options (a time
  before offsets), so does this source.
- Option names are case-insensitive, as Spark does not preserve their case.
- `kafka.` options are those of a Kafka consumer. Few have an effect here; harmless ones are ignored, so that a job can
  be moved without changes.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from headrace.client.metadata import TopicPartition
from headrace.columns.schema import COLUMNS
from headrace.model.durations import parse_duration, parse_time
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.model.names import check_group_id, check_topic_name, compiled
from headrace.spark.decoding import value_ddl

Choice = TypeVar("Choice", bound=str)
T = TypeVar("T")
Other = TypeVar("Other")

KNOWN = (
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

_IGNORED_OF_KAFKA = """
    allow.auto.create.topics auto.commit.interval.ms check.crcs client.dns.lookup client.rack
    connections.max.idle.ms default.api.timeout.ms enable.metrics.push exclude.internal.topics fetch.max.bytes
    fetch.max.wait.ms fetch.min.bytes group.instance.id group.protocol heartbeat.interval.ms
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retry.backoff.max.ms retry.backoff.ms send.buffer.bytes session.timeout.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
"""

IGNORED = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    *(f"kafka.{name}" for name in _IGNORED_OF_KAFKA.split()),
)

REJECTED = {
    "kafka.auto.offset.reset": "set startingOffsets instead",
    "kafka.enable.auto.commit": "Spark stores the offsets in its checkpoint, and the source commits them",
    "kafka.key.deserializer": "keys are returned as bytes",
    "kafka.value.deserializer": "values are returned as bytes, or decoded by valueFormat",
    "kafka.interceptor.classes": "the source does not use a Kafka consumer",
    "path": "set subscribe to read topics",
    "topic": "use subscribe for a source",
}

_SECURITY = ("kafka.ssl.", "kafka.sasl.", "kafka.security.providers")


class OptionErrors:
    """Collects the errors of several options, so that all of them are reported at once."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def read(self, get: Callable[[], T], instead: Other) -> T | Other:
        """The result of `get`; after an error `instead`, which must not be used."""
        try:
            return get()
        except HeadraceError as error:
            self.messages.append(error.message)
            return instead

    def raise_all(self) -> None:
        if self.messages:
            raise InvalidConfig("; ".join(self.messages))


def check_options(
    options: Mapping[str, str],
    errors: OptionErrors,
    own: Sequence[str] = KNOWN,
    ignored: Sequence[str] = IGNORED,
    rejected: Mapping[str, str] = REJECTED,
    what: str = "source",
) -> dict[str, str]:
    """The options by lower-case name; unknown and unsupported ones are errors."""
    known = {name.lower(): name for name in (*own, *ignored)}
    given = {name.lower(): value.strip() for name, value in options.items()}
    for name in given:
        if name in rejected:
            errors.messages.append(f"the option {name} cannot be set: {rejected[name]}")
        elif name.startswith(_SECURITY):
            errors.messages.append(f"the option {name} cannot be used: this {what} supports neither TLS nor SASL")
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            errors.messages.append(f"there is no option {name!r}{hint}")
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        errors.messages.append(f"kafka.security.protocol is {protocol}: this {what} supports neither TLS nor SASL")
    return given


def duration_seconds(given: Mapping[str, str], name: str, default: str) -> float:
    return named(name, lambda: parse_duration(given.get(name.lower()) or default)) / 1000


def named(name: str, get: Callable[[], T]) -> T:
    """Name the option in an error that does not."""
    try:
        return get()
    except HeadraceError as error:
        raise InvalidConfig(f"{name}: {error.message}") from None


def choice(given: Mapping[str, str], name: str, choices: Sequence[Choice], default: Choice) -> Choice:
    """The value of an option that has few values."""
    text = given.get(name.lower(), default)
    for one in choices:
        if one == text.lower():
            return one
    raise InvalidConfig(f"{name} is {text!r}; it can be {' or '.join(choices)}")


def brokers_of(given: Mapping[str, str]) -> str:
    if not (brokers := given.get("kafka.bootstrap.servers")):
        raise InvalidConfig("the option kafka.bootstrap.servers is missing; set it to the addresses of brokers")
    return brokers


EARLIEST = -2
LATEST = -1
RAW_VALUE = "rawValue"
HEADERS = "headers"

_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_NAME_LENGTH_MAX = 40  # of the topics in a default group name

DataLossRule = Literal["fail", "skip", "archive"]
ValueFormat = Literal["json", "avro"]
BadValueRule = Literal["fail", "null"]

_DATA_LOSS_RULES: tuple[DataLossRule, ...] = ("fail", "skip", "archive")
_FAIL: tuple[DataLossRule, None] = ("fail", None)
_VALUE_FORMATS: tuple[ValueFormat, ...] = ("json", "avro")
_ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
_BAD_VALUE_RULES: tuple[BadValueRule, ...] = ("fail", "null")


class TopicSelection(msgspec.Struct, frozen=True):
    """The topics to read: by name, by pattern, or as single partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics; None for a pattern."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({target.topic for target in self.partitions}))


class OffsetSpec(msgspec.Struct, frozen=True):
    """Where a query starts or ends. `numbers`: offsets or times (ms) by partition; `time_ms`: one time for all."""

    kind: Literal["earliest", "latest", "group", "offsets", "times"]
    numbers: Mapping[TopicPartition, int] = {}
    time_ms: int | None = None
    latest_if_none: bool = False  # without a record at or after the time: the end; else an error


class SourceOptions(msgspec.Struct, frozen=True):
    brokers: str
    subscription: TopicSelection
    starting: OffsetSpec
    ending: OffsetSpec
    columns: tuple[str, ...]
    group: str
    read_committed: bool = True
    on_data_loss: DataLossRule = "fail"
    archive: str | None = None
    value_format: ValueFormat | None = None
    value_schema: str = ""
    on_bad_value: BadValueRule = "fail"
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_seconds_max: float = 15 * 60.0
    partitions_min: int | None = None
    records_per_partition_max: int | None = None


def parse(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and check the options; raises InvalidConfig, which names all errors."""
    errors = OptionErrors()
    found = _OptionsParser(options, errors, streaming=streaming).parse()
    errors.raise_all()
    return found


def problems_of(options: Mapping[str, str], *, streaming: bool) -> Sequence[str]:
    """The errors that `parse` raises, one by one."""
    errors = OptionErrors()
    _OptionsParser(options, errors, streaming=streaming).parse()
    return errors.messages


def parse_columns(options: Mapping[str, str]) -> tuple[tuple[str, ...], ValueFormat | None, str]:
    """The columns, and how the value is decoded: the part that does not depend on the kind of query."""
    errors = OptionErrors()
    parser = _OptionsParser(options, errors, streaming=True)
    value_format, value_schema = errors.read(parser.value_format, (None, ""))
    columns = errors.read(lambda: parser.columns(with_raw_value=parser.has_value_format), ())
    errors.raise_all()
    return columns, value_format, value_schema


class _OptionsParser:
    def __init__(self, options: Mapping[str, str], errors: OptionErrors, *, streaming: bool) -> None:
        self._options = check_options(options, errors)
        self._errors = errors
        self._streaming = streaming

    def parse(self) -> SourceOptions:
        """The options; only valid if there are no errors."""
        read = self._errors.read
        for name in _BATCH_ONLY if self._streaming else ():
            if self._text(name) is not None:
                self._errors.messages.append(f"{name} has no meaning in a streaming query, which does not end")
        subscription = read(self._subscription, TopicSelection())
        value_format, value_schema = read(self.value_format, (None, ""))
        on_data_loss, archive = read(self._on_data_loss, _FAIL)
        isolation = read(lambda: self._choice("kafka.isolation.level", _ISOLATION_LEVELS, "read_committed"), "")
        return SourceOptions(
            brokers=read(lambda: brokers_of(self._options), ""),
            subscription=subscription,
            starting=read(self._starting, OffsetSpec("latest")),
            ending=OffsetSpec("latest") if self._streaming else read(self._ending, OffsetSpec("latest")),
            columns=read(lambda: self.columns(with_raw_value=self.has_value_format), ()),
            group=read(lambda: self._group(subscription), ""),
            read_committed=isolation == "read_committed",
            on_data_loss=on_data_loss,
            archive=archive,
            value_format=value_format,
            value_schema=value_schema,
            on_bad_value=read(lambda: self._choice("onBadValue", _BAD_VALUE_RULES, "fail"), "fail"),
            offsets_per_trigger_max=read(lambda: self._count("maxOffsetsPerTrigger"), None),
            offsets_per_trigger_min=read(lambda: self._count("minOffsetsPerTrigger"), None),
            trigger_delay_seconds_max=read(lambda: duration_seconds(self._options, "maxTriggerDelay", "15m"), 0.0),
            partitions_min=read(lambda: self._count("minPartitions"), None),
            records_per_partition_max=read(lambda: self._count("maxRecordsPerPartition"), None),
        )

    @property
    def has_value_format(self) -> bool:
        return bool(self._text("valueFormat") and self._text("valueSchema"))

    def value_format(self) -> tuple[ValueFormat | None, str]:
        schema = self._text("valueSchema") or ""
        if (self._text("valueFormat") is None) != (not schema):
            raise InvalidConfig("valueFormat and valueSchema must be set together")
        if not schema:
            return None, ""
        value_format = self._choice("valueFormat", _VALUE_FORMATS, "json")
        value_ddl(value_format, schema)
        return value_format, schema

    def _text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def _choice(self, name: str, choices: Sequence[Choice], default: Choice) -> Choice:
        return choice(self._options, name, choices, default)

    def _flag(self, name: str, *, default: bool) -> bool:
        return self._choice(name, ("true", "false"), "true" if default else "false") == "true"

    def _count(self, name: str) -> int | None:
        text = self._text(name)
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,18}", text) is None or int(text) == 0:
            raise InvalidConfig(f"{name} is {text!r}; it must be a whole number above 0")
        return int(text)

    def _subscription(self) -> TopicSelection:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if self._text(name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InvalidConfig(f"set exactly one of subscribe, subscribePattern and assign; found {found}")
        text = self._text(given[0]) or ""
        if given[0] == "subscribePattern":
            compiled(text)
            return TopicSelection(pattern=text)
        if given[0] == "assign":
            assigned = _decoded("assign", text, dict[str, list[int]], '{"orders": [0, 1]}')
            targets = {TopicPartition(check_topic_name(t), p) for t, numbers in assigned.items() for p in numbers}
            return TopicSelection(partitions=_not_empty(given[0], sorted(targets)))
        names = {name.strip() for name in text.split(",") if name.strip()}
        return TopicSelection(topics=_not_empty(given[0], sorted(check_topic_name(name) for name in names)))

    def _starting(self) -> OffsetSpec:
        if_none = self._choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "latest"
        spec = self._offset_spec("starting", "latest" if self._streaming else "earliest", if_none)
        if not self._streaming and (spec.kind == "latest" or (spec.kind == "offsets" and LATEST in _numbers(spec))):
            raise InvalidConfig("startingOffsets cannot be latest in a batch query: it would find nothing")
        return spec

    def _ending(self) -> OffsetSpec:
        spec = self._offset_spec("ending", "latest", latest_if_none=True)
        if spec.kind == "earliest" or (spec.kind == "offsets" and EARLIEST in _numbers(spec)):
            raise InvalidConfig("endingOffsets cannot be earliest in a batch query: it would find nothing")
        if spec.kind == "group":
            raise InvalidConfig("endingOffsets can be latest or offsets by partition; group is for startingOffsets")
        return spec

    def _offset_spec(self, which: str, default: Literal["earliest", "latest"], latest_if_none: bool) -> OffsetSpec:
        time = self._text(f"{which}Timestamp")
        if time is not None:
            time_ms = named(f"{which}Timestamp", lambda: parse_time(time))
            return OffsetSpec("times", time_ms=time_ms, latest_if_none=latest_if_none)
        times = self._text(f"{which}OffsetsByTimestamp")
        if times is not None:
            numbers = _by_partition(f"{which}OffsetsByTimestamp", times, smallest=0)
            return OffsetSpec("times", numbers, latest_if_none=latest_if_none)
        text = self._text(f"{which}Offsets") or default
        match text.lower():
            case "earliest" | "latest" | "group" as kind:
                return OffsetSpec(kind)
        return OffsetSpec("offsets", _by_partition(f"{which}Offsets", text, smallest=EARLIEST))

    def _on_data_loss(self) -> tuple[DataLossRule, str | None]:
        default: DataLossRule = "fail" if self._flag("failOnDataLoss", default=True) else "skip"
        rule = self._choice("onDataLoss", _DATA_LOSS_RULES, default)
        archive = self._text("archive")
        if rule == "archive" and not archive:
            raise InvalidConfig("onDataLoss=archive needs the option archive, the location of the archive")
        return rule, archive

    def columns(self, *, with_raw_value: bool) -> tuple[str, ...]:
        headers = self._flag("includeHeaders", default=False)
        offered = (*COLUMNS, RAW_VALUE) if with_raw_value else COLUMNS
        text = self._text("columns")
        if text is None:
            return tuple(name for name in offered if headers or name != HEADERS)
        by_name = {name.lower(): name for name in offered}
        chosen = [name.strip() for name in text.split(",") if name.strip()]
        for name in chosen:
            if name.lower() not in by_name:
                raise InvalidConfig(f"there is no column {name!r}; columns can name {', '.join(offered)}")
        if len({name.lower() for name in chosen}) < len(chosen):
            raise InvalidConfig("columns names a column twice")
        return _not_empty("columns", [by_name[name.lower()] for name in chosen])

    def _group(self, subscription: TopicSelection) -> str:
        for name in ("groupId", "kafka.group.id"):
            given = self._text(name)
            if given is not None:
                return check_group_id(given)
        prefix = self._text("groupIdPrefix")
        if prefix is not None:
            check_group_id(prefix)
        return f"{prefix or 'spark'}-{_group_suffix(subscription)}"


def _group_suffix(subscription: TopicSelection) -> str:
    """The same for every run of a query, and different for queries that read other topics."""
    topics = subscription.pattern or ",".join(map(str, subscription.partitions)) or ",".join(subscription.topics)
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", topics)[:_NAME_LENGTH_MAX].strip("-")
    digest = hashlib.sha256(msgspec.json.encode(subscription)).hexdigest()[:8]
    return f"{readable}-{digest}"


def _numbers(spec: OffsetSpec) -> Iterable[int]:
    return spec.numbers.values()


def _by_partition(name: str, text: str, *, smallest: int) -> dict[TopicPartition, int]:
    example = '{"orders": {"0": 23, "1": -2}}' if smallest < 0 else '{"orders": {"0": 1700000000000}}'
    by_topic = _decoded(name, text, dict[str, dict[int, int]], example)
    found = {
        TopicPartition(check_topic_name(topic), partition): number
        for topic, numbers in by_topic.items()
        for partition, number in numbers.items()
    }
    for target, number in found.items():
        if number < smallest or target.partition < 0:
            raise InvalidConfig(f"{name} has the invalid value {number} for {target}")
    return found


def _decoded(name: str, text: str, kind: type[T], example: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidConfig(f"{name} is invalid, write it like {example}: {error}") from None


def _not_empty(name: str, found: Sequence[T]) -> tuple[T, ...]:
    if not found:
        raise InvalidConfig(f"{name} is empty")
    return tuple(found)
