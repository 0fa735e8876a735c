"""What a query was told in options, checked and typed: what cannot be meant is refused before anything is read.

Names and meanings are those of Spark's Kafka source; where that takes the first of several options that say the same
(a time before offsets), so does this one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from headrace.client.metadata import TopicPartition
from headrace.columns.schema import COLUMNS
from headrace.model.durations import parse_duration, parse_time
from headrace.model.errors import InvalidConfig
from headrace.model.names import check_group_id, check_topic_name
from headrace.model.patterns import compiled
from headrace.spark.option_names import checked

EARLIEST = -2
LATEST = -1
RAW_VALUE = "rawValue"
HEADERS = "headers"

_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_NAME_LENGTH_MAX = 40  # of what is read, in the name of a group that nobody named

DataLossRule = Literal["fail", "skip", "archive"]
ValueFormat = Literal["json", "avro"]
BadValueRule = Literal["fail", "null"]

_DATA_LOSS_RULES: tuple[DataLossRule, ...] = ("fail", "skip", "archive")
_VALUE_FORMATS: tuple[ValueFormat, ...] = ("json", "avro")
_BAD_VALUE_RULES: tuple[BadValueRule, ...] = ("fail", "null")

Choice = TypeVar("Choice", bound=str)


class Subscription(msgspec.Struct, frozen=True):
    """What is read: topics by name, by pattern, or single partitions. One of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics, if they are known by name."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({target.topic for target in self.partitions}))


class Place(msgspec.Struct, frozen=True):
    """Where reading starts or ends. `numbers` holds offsets or times (ms) by partition, `time_ms` a time for all."""

    kind: Literal["earliest", "latest", "group", "offsets", "times"]
    numbers: Mapping[TopicPartition, int] = {}
    time_ms: int | None = None
    latest_if_none: bool = False  # at a time after which there is no record; else that is an error


class SourceOptions(msgspec.Struct, frozen=True):
    brokers: str
    subscription: Subscription
    starting: Place
    ending: Place
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
    """Raises InvalidConfig, with one sentence that says which option is wrong."""
    return _Parser(checked(options), streaming=streaming).parse()


def parse_columns(options: Mapping[str, str]) -> tuple[tuple[str, ...], ValueFormat | None, str]:
    """The columns, and how the value is decoded: what can be told before it is known what kind of query it is."""
    parser = _Parser(checked(options), streaming=True)
    value_format, value_schema = parser.value_format()
    return parser.columns(with_raw_value=value_format is not None), value_format, value_schema


class _Parser:
    def __init__(self, given: Mapping[str, str], *, streaming: bool) -> None:
        self._given = given
        self._streaming = streaming

    def parse(self) -> SourceOptions:
        if self._streaming and (misplaced := [name for name in _BATCH_ONLY if self._text(name) is not None]):
            raise InvalidConfig(f"{misplaced[0]} has no meaning in a streaming query, which does not end")
        brokers = self._text("kafka.bootstrap.servers")
        if not brokers:
            raise InvalidConfig("say where the brokers are: kafka.bootstrap.servers is missing")
        subscription = self._subscription()
        value_format, value_schema = self.value_format()
        on_data_loss, archive = self._on_data_loss()
        return SourceOptions(
            brokers=brokers,
            subscription=subscription,
            starting=self._starting(),
            ending=self._ending(),
            columns=self.columns(with_raw_value=value_format is not None),
            group=self._group(subscription),
            read_committed=self._isolation() == "read_committed",
            on_data_loss=on_data_loss,
            archive=archive,
            value_format=value_format,
            value_schema=value_schema,
            on_bad_value=self._choice("onBadValue", _BAD_VALUE_RULES, "fail"),
            offsets_per_trigger_max=self._count("maxOffsetsPerTrigger"),
            offsets_per_trigger_min=self._count("minOffsetsPerTrigger"),
            trigger_delay_seconds_max=parse_duration(self._text("maxTriggerDelay") or "15m") / 1000,
            partitions_min=self._count("minPartitions"),
            records_per_partition_max=self._count("maxRecordsPerPartition"),
        )

    def value_format(self) -> tuple[ValueFormat | None, str]:
        schema = self._text("valueSchema") or ""
        if (self._text("valueFormat") is None) != (not schema):
            raise InvalidConfig("valueFormat and valueSchema belong together, and one of them is missing")
        return (self._choice("valueFormat", _VALUE_FORMATS, "json") if schema else None), schema

    def _text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def _choice(self, name: str, choices: Sequence[Choice], default: Choice) -> Choice:
        text = self._text(name)
        if text is None:
            return default
        for choice in choices:
            if choice == text.lower():
                return choice
        raise InvalidConfig(f"{name} is {text!r}; it can be {' or '.join(choices)}")

    def _flag(self, name: str, *, default: bool) -> bool:
        return self._choice(name, ("true", "false"), "true" if default else "false") == "true"

    def _count(self, name: str) -> int | None:
        text = self._text(name)
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,18}", text) is None or int(text) == 0:
            raise InvalidConfig(f"{name} is {text!r}; it must be a whole number above 0")
        return int(text)

    def _subscription(self) -> Subscription:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if self._text(name) is not None]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise InvalidConfig(f"say what to read with one of subscribe, subscribePattern and assign; {said} is given")
        text = self._text(given[0]) or ""
        if given[0] == "subscribePattern":
            compiled(text)
            return Subscription(pattern=text)
        if given[0] == "assign":
            assigned = _decoded("assign", text, dict[str, list[int]], '{"orders": [0, 1]}')
            targets = {TopicPartition(check_topic_name(t), p) for t, numbers in assigned.items() for p in numbers}
            return Subscription(partitions=_not_empty(given[0], sorted(targets)))
        names = {name.strip() for name in text.split(",") if name.strip()}
        return Subscription(topics=_not_empty(given[0], sorted(check_topic_name(name) for name in names)))

    def _starting(self) -> Place:
        if_none = self._choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "latest"
        place = self._place("starting", "latest" if self._streaming else "earliest", if_none)
        if not self._streaming and (place.kind == "latest" or (place.kind == "offsets" and LATEST in _numbers(place))):
            raise InvalidConfig("startingOffsets is latest, where a batch query would find nothing")
        return place

    def _ending(self) -> Place:
        place = self._place("ending", "latest", latest_if_none=True)
        if place.kind == "earliest" or (place.kind == "offsets" and EARLIEST in _numbers(place)):
            raise InvalidConfig("endingOffsets is earliest, where a batch query would find nothing")
        if place.kind == "group":
            raise InvalidConfig("endingOffsets can be latest or offsets by partition; group is for startingOffsets")
        return place

    def _place(self, which: str, default: Literal["earliest", "latest"], latest_if_none: bool) -> Place:
        time = self._text(f"{which}Timestamp")
        if time is not None:
            return Place("times", time_ms=parse_time(time), latest_if_none=latest_if_none)
        times = self._text(f"{which}OffsetsByTimestamp")
        if times is not None:
            numbers = _by_partition(f"{which}OffsetsByTimestamp", times, smallest=0)
            return Place("times", numbers, latest_if_none=latest_if_none)
        text = self._text(f"{which}Offsets") or default
        match text.lower():
            case "earliest" | "latest" | "group" as kind:
                return Place(kind)
        return Place("offsets", _by_partition(f"{which}Offsets", text, smallest=EARLIEST))

    def _isolation(self) -> str:
        return self._choice("kafka.isolation.level", ("read_committed", "read_uncommitted"), "read_committed")

    def _on_data_loss(self) -> tuple[DataLossRule, str | None]:
        default: DataLossRule = "fail" if self._flag("failOnDataLoss", default=True) else "skip"
        rule = self._choice("onDataLoss", _DATA_LOSS_RULES, default)
        archive = self._text("archive")
        if rule == "archive" and not archive:
            raise InvalidConfig("onDataLoss is archive: say where that is with the option archive")
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

    def _group(self, subscription: Subscription) -> str:
        for name in ("groupId", "kafka.group.id"):
            given = self._text(name)
            if given is not None:
                return check_group_id(given)
        prefix = self._text("groupIdPrefix")
        if prefix is not None:
            check_group_id(prefix)
        return f"{prefix or 'spark'}-{_short_name(subscription)}"


def _short_name(subscription: Subscription) -> str:
    """The same for every run of a query, and another one for a query that reads something else."""
    said = subscription.pattern or ",".join(map(str, subscription.partitions)) or ",".join(subscription.topics)
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", said)[:_NAME_LENGTH_MAX].strip("-")
    digest = hashlib.sha256(msgspec.json.encode(subscription)).hexdigest()[:8]
    return f"{readable}-{digest}"


def _numbers(place: Place) -> Iterable[int]:
    return place.numbers.values()


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
            raise InvalidConfig(f"{name} says {number} for {target}, which cannot be")
    return found


T = TypeVar("T")


def _decoded(name: str, text: str, kind: type[T], example: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidConfig(f"{name} is not as in {example}: {error}") from None


def _not_empty(name: str, found: Sequence[T]) -> tuple[T, ...]:
    if not found:
        raise InvalidConfig(f"{name} is empty")
    return tuple(found)
