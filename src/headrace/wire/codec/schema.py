"""Declare Kafka messages: one class for all versions of a message, with its fields in wire order.

    class ProduceRequest(ApiMessage, versions=(3, 13), flexible_since=9):
        transactional_id: str | None = wire(STRING, nullable=3, default=None)
        acks: int = wire(INT16)
        topic_data: list[TopicProduceData] = array(TopicProduceData)

- A class becomes a `msgspec.Struct`, because creating an instance takes a quarter of the time of a dataclass.
- Every field has a default, so that code sets only the relevant ones.
- A field is present in the versions `since` to `until`, and may be null from version `nullable` on.
- A field with a `tag` is in the tagged section, and is sent only if it differs from its default. A tagged part that was
  not sent is None.
- Only `wire.codec` interprets these declarations.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, dataclass_transform
from uuid import UUID

import msgspec
from msgspec.structs import replace

NEVER: Final = 1 << 15
NULL_UUID: Final = UUID(int=0)


class Chunk(Protocol):
    """A piece of an encoded message: bytes, a view, or a slice of a file."""

    def __len__(self) -> int: ...


class Fixed(msgspec.Struct, frozen=True):
    """A value of fixed size; `letter` is its struct format."""

    letter: str
    size_bytes: int
    zero: Any


class Sized(msgspec.Struct, frozen=True):
    """A value after its length: int16 or int32, or an unsigned varint of length + 1 in flexible versions."""

    name: str
    legacy_letter: str
    zero: Any


class Array(msgspec.Struct, frozen=True):
    """Elements after their count."""

    of: Type


Type = Fixed | Sized | Array | type

BOOL: Final = Fixed("?", 1, False)
INT8: Final = Fixed("b", 1, 0)
INT16: Final = Fixed("h", 2, 0)
UINT16: Final = Fixed("H", 2, 0)
INT32: Final = Fixed("i", 4, 0)
INT64: Final = Fixed("q", 8, 0)
FLOAT64: Final = Fixed("d", 8, 0.0)
UUID16: Final = Fixed("16s", 16, NULL_UUID)
STRING: Final = Sized("string", "h", "")
BYTES: Final = Sized("bytes", "i", b"")
RECORDS: Final = Sized("records", "i", None)


class Field(msgspec.Struct, frozen=True):
    name: str
    type: Type
    since: int
    until: int
    nullable: int
    tag: int | None
    default: Any

    def in_version(self, version: int) -> bool:
        return self.since <= version <= self.until


_ZERO: Final = object()


def wire(
    kind: Type,
    *,
    since: int = 0,
    until: int = NEVER,
    nullable: int = NEVER,
    tag: int | None = None,
    default: Any = _ZERO,
) -> Any:
    """Declare a field. The default is zero, the empty string or an empty list, and None for a part."""
    if default is _ZERO:
        default = kind.zero if isinstance(kind, Fixed | Sized) else [] if isinstance(kind, Array) else None
    return Field("", kind, since, until, nullable, tag, default)


def array(of: Type, **options: Any) -> Any:
    """Declare a field with an array, with the options of `wire`."""
    return wire(Array(of), **options)


class Layout(msgspec.Struct, frozen=True):
    """The declaration of a class. A part has the version of its message."""

    fields: tuple[Field, ...]
    min_version: int = 0
    max_version: int = NEVER
    flexible_since: int = NEVER


_layouts: dict[type, Layout] = {}


def layout(cls: type) -> Layout:
    return _layouts[cls]


class _Declaration(type):
    """Creates a `msgspec.Struct` and its layout in place of a declared class."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        versions: tuple[int, int] = (0, NEVER),
        flexible_since: int = NEVER,
    ) -> Any:
        if not bases:
            return super().__new__(mcs, name, bases, namespace)
        fields = tuple(replace(namespace[field], name=field) for field in namespace.get("__annotations__", ()))
        # gc=False: a message is a tree, so reference counting alone frees it.
        struct = msgspec.defstruct(
            name,
            [(f.name, Any, msgspec.field(default_factory=list) if f.default == [] else f.default) for f in fields],
            module=namespace["__module__"],
            namespace={"__doc__": namespace.get("__doc__")},
            gc=False,
        )
        _layouts[struct] = Layout(fields, *versions, flexible_since)
        return struct


@dataclass_transform()
class ApiMessage(metaclass=_Declaration):
    """A request, a response, or another value that is not a part of a message."""


@dataclass_transform()
class Part(metaclass=_Declaration):
    """A struct that is nested in messages."""
