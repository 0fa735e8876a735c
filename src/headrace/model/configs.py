"""Declare, parse, check, change and describe configuration values.

A config class is a frozen dataclass whose fields are declared with `boolean`, `text`, `secret`, `integer`, `long`,
`double` and `string_list`. One declaration defines the typed attribute (`segment_bytes`), Kafka's name
(`segment.bytes`), the default, the check and the documentation. `settings_of` lists the declared settings.

Values are received and stored as text, because the wire protocol carries text and DescribeConfigs must return it
unchanged. They are parsed once, when a config object is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, fields
from enum import IntEnum
from functools import partial
from typing import Any

import msgspec

from headrace.model.errors import InvalidConfig, InvalidRequest

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

Value = bool | int | float | str | tuple[str, ...]
Check = Callable[[Any], str | None]
"""Returns what is wrong with a value, or None."""


class ConfigType(IntEnum):
    """The type codes of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The source codes of DescribeConfigs, highest precedence first; group configs have a source of their own."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class AlterOperation(IntEnum):
    """The operation codes of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class BrokerConfigName(msgspec.Struct, frozen=True):
    """The broker setting that provides the default of a topic setting, possibly in a coarser unit."""

    name: str
    factor: int = 1

    def to_topic(self, value: Any) -> Any:
        """Convert to the unit of the topic setting. Negative values mean "no limit" in every unit."""
        return value * self.factor if self.factor > 1 and value >= 0 else value

    def from_topic(self, value: Any) -> Any:
        return value // self.factor if self.factor > 1 and value >= 0 else value


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one configuration name."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    check: Check | None = None
    broker_names: tuple[BrokerConfigName, ...] = ()
    read_only: bool = False

    def parse(self, value: str | None) -> Value:
        """Return the typed value, or raise `InvalidConfig` with the setting and the violated rule."""
        if value is None:
            raise InvalidConfig(f"Null value not supported for configuration {self.name}")
        try:
            parsed = _PARSERS[self.type](value.strip())
            wrong = self.check(parsed) if self.check else None
        except ValueError as error:
            wrong = str(error)
        if wrong:
            shown = "" if self.is_secret else f" {value}"
            raise InvalidConfig(f"Invalid value{shown} for configuration {self.name}: {wrong}")
        return parsed

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be returned to clients."""
        return self.type is ConfigType.PASSWORD


class Synonym(msgspec.Struct, frozen=True):
    name: str
    value: str
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """One entry of DescribeConfigs. `synonyms` begins with the effective value. The response must omit secrets."""

    name: str
    value: str
    source: ConfigSource
    type: ConfigType
    read_only: bool
    doc: str
    synonyms: tuple[Synonym, ...]

    @property
    def is_secret(self) -> bool:
        return self.type is ConfigType.PASSWORD


class ConfigChange(msgspec.Struct, frozen=True):
    """One operation of IncrementalAlterConfigs."""

    name: str
    operation: AlterOperation
    value: str | None = None


def parse_all(settings: Mapping[str, Setting], given: Mapping[str, str | None], kind: str) -> dict[str, Value]:
    """Parse all given values; one `InvalidConfig` lists everything that is wrong."""
    values: dict[str, Value] = {}
    problems: list[str] = []
    for name, text_value in given.items():
        try:
            values[name] = find_setting(settings, name, kind).parse(text_value)
        except InvalidConfig as error:
            problems.append(error.message)
    if problems:
        raise InvalidConfig("; ".join(problems))
    return values


def find_setting(settings: Mapping[str, Setting], name: str, kind: str) -> Setting:
    """Return the setting of that name; the error for an unknown name suggests the most similar one."""
    setting = settings.get(name)
    if setting is None:
        import difflib  # imported only for the error: keeps startup fast

        near = difflib.get_close_matches(name, settings, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InvalidConfig(f"Unknown {kind} config name: {name}{hint}")
    return setting


def alter(
    settings: Mapping[str, Setting],
    overrides: Mapping[str, str],
    changes: Iterable[ConfigChange],
    *,
    inherited: Callable[[str], str],
    kind: str,
) -> dict[str, str]:
    """Apply the changes to the overrides. The caller validates the result by building a config from it.

    `inherited` returns the effective value where there is no override: APPEND and SUBTRACT start from it.
    """
    altered = dict(overrides)
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise InvalidRequest(f"Error due to duplicate config keys: {change.name}")
        seen.add(change.name)
        if change.operation is AlterOperation.DELETE:
            # Unknown names are deleted as well; otherwise an override of a config that was removed would stay forever.
            altered.pop(change.name, None)
            continue
        setting = find_setting(settings, change.name, kind)
        if change.value is None:
            raise InvalidRequest(f"Null value not supported for {change.operation.name}: {change.name}")
        if change.operation is AlterOperation.SET:
            altered[change.name] = change.value
            continue
        if setting.type is not ConfigType.LIST:
            raise InvalidConfig(f"Can't {change.operation.name} to key {change.name} because its type is not LIST.")
        before = _read_list(altered.get(change.name, inherited(change.name)))
        named = _read_list(change.value)
        if change.operation is AlterOperation.APPEND:
            after = [*before, *(word for word in named if word not in before)]
        else:
            after = [word for word in before if word not in named]
        altered[change.name] = ",".join(after)
    return altered


def value_text(value: Value) -> str:
    """Format a value as Kafka does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _declare(type_: ConfigType, default: Any, doc: str, **more: Any) -> Any:
    setting = {"type": type_, "default": default, "doc": doc, **more}
    return field(default=default, repr=type_ is not ConfigType.PASSWORD, metadata={"setting": setting})


# Field declarations. Their return types are those of the attributes, so that mypy checks the annotations.
boolean: Callable[..., bool] = partial(_declare, ConfigType.BOOLEAN)
text: Callable[..., str] = partial(_declare, ConfigType.STRING)
integer: Callable[..., int] = partial(_declare, ConfigType.INT)
long: Callable[..., int] = partial(_declare, ConfigType.LONG)
double: Callable[..., float] = partial(_declare, ConfigType.DOUBLE)
string_list: Callable[..., tuple[str, ...]] = partial(_declare, ConfigType.LIST)
secret: Callable[..., str] = partial(_declare, ConfigType.PASSWORD, "")
"""Text that is never displayed; empty by default."""


def settings_of(config_class: type[Any]) -> dict[str, Setting]:
    """List the settings that a config class declares, by Kafka's names, in declaration order."""
    settings = (
        Setting(name=spec.name.replace("_", "."), **spec.metadata["setting"])
        for spec in fields(config_class)
        if "setting" in spec.metadata
    )
    return {setting.name: setting for setting in settings}


def attribute_name(name: str) -> str:
    return name.replace(".", "_")


# Checks.


def at_least(low: float) -> Check:
    return lambda value: None if value >= low else f"Value must be at least {low}"


def between(low: float, high: float) -> Check:
    def check(value: float) -> str | None:
        if value < low:
            return f"Value must be at least {low}"
        return None if value <= high else f"Value must be no more than {high}"

    return check


def one_of(*allowed: str) -> Check:
    return lambda value: None if value in allowed else f"String must be one of: {', '.join(allowed)}"


def one_of_any_case(*allowed: str) -> Check:
    reason = f"String must be one of (case insensitive): {', '.join(allowed)}"
    return lambda value: None if value.lower() in allowed else reason


def each_of(*allowed: str) -> Check:
    def check(value: Sequence[str]) -> str | None:
        if len(set(value)) != len(value):
            return "List must not contain duplicates"
        return None if set(value) <= set(allowed) else f"List must only contain: {', '.join(allowed)}"

    return check


def only_supported(allowed: Collection[Value], why: str) -> Check:
    """Check a Kafka setting that Headrace supports with certain values only: reject others, do not ignore them."""
    return lambda value: None if value in allowed else why


# Parsers.


_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


def _read_boolean(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ValueError("Expected value to be either true or false")
    return value.lower() == "true"


def _read_number(type_: ConfigType, bits: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        # int() alone would also accept "1_000" and thousands of digits.
        number = int(value) if _NUMBER.fullmatch(value) else None
        if number is None or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise ValueError(f"Not a number of type {type_.name}")
        return number

    return read


def _read_double(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError("Not a number of type DOUBLE") from None


def _read_list(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",") if word.strip())


_PARSERS: dict[ConfigType, Callable[[str], Value]] = {
    ConfigType.BOOLEAN: _read_boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _read_number(ConfigType.INT, 32),
    ConfigType.LONG: _read_number(ConfigType.LONG, 64),
    ConfigType.DOUBLE: _read_double,
    ConfigType.LIST: _read_list,
    ConfigType.PASSWORD: str,
}
