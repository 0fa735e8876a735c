"""Values of settings against their types: what is wrong with them, said in the words of the file.

A settings type is a msgspec.Struct; tables in tables are Structs too, or dicts or lists of them, or of several that
are told apart by their tags. `value_of` reads a value that was written on the command line, where all is text, as the
type of its key has it.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec import inspect, structs

_SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of 128MB, 1GiB, 512 kB or 4096; raises ValueError with a sentence for the user."""
    number = text.rstrip("BKMGTIbkmgti ")
    unit = text[len(number) :].strip().lower()
    if not number.isascii() or not number.isdigit() or unit not in _SIZES:
        raise ValueError(f"{text!r} is not a size; write 4096, 512kB, 128MB or 1GiB")
    return int(number) * _SIZES[unit]


def near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def problems_in(value: Any, kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where something is wrong, and what; the rest is as its type has it."""
    if _is_struct(kind):
        yield from _problems_in_table(value, kind, path)
    elif tagged := _tagged(kind):
        yield from _problems_in_tagged(value, tagged, path)
    elif get_origin(kind) is dict and isinstance(value, dict):
        for name, inner in value.items():
            yield from problems_in(inner, get_args(kind)[1], (*path, name))
    elif get_origin(kind) is list and isinstance(value, list) and path:
        for number, inner in enumerate(value, 1):
            yield from problems_in(inner, get_args(kind)[0], (*path[:-1], f"{path[-1]}[{number}]"))
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            reason = "" if str(error).startswith(("Expected `", "Invalid enum")) else f": {error}"
            yield path, f"takes {shown(kind)}, not {_shown_value(value)}{reason}"


def _problems_in_table(value: Any, kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(value, dict):
        yield path, f"must be a table, not {_shown_value(value)}"
        return
    fields = {field.encode_name: field for field in structs.fields(kind)}
    for name in value:
        if name not in fields:
            what = f"there is no such key{near(name, fields)}; there are {', '.join(fields)}"
            yield (*path, name), what if fields else "there is no such key, and no other in this table"
    for name, field in fields.items():
        if name in value:
            yield from problems_in(value[name], field.type, (*path, name))
        elif field.required:
            yield (*path, name), f"is missing; it takes {shown(field.type)}"


def _problems_in_tagged(
    value: Any, kinds: dict[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    tag_field = next(iter(kinds.values())).__struct_config__.tag_field
    tag = value.get(tag_field) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        yield path, f"must be a table, not {_shown_value(value)}"
    elif tag not in kinds:
        was = "is missing; it" if tag is None else f"is {_shown_value(tag)}, but"
        yield (*path, tag_field), f"{was} takes one of {', '.join(kinds)}"
    else:
        rest = {name: inner for name, inner in value.items() if name != tag_field}
        yield from _problems_in_table(rest, kinds[tag], path)


def value_of(kind: Any, key: str, text: str) -> tuple[list[str], Any]:
    """The names that a dotted key goes through, and its value; unknown ones are left for `problems_in` to name."""
    names = []
    while True:
        if _is_struct(kind):
            name, _, key = key.partition(".")
            names.append(name)
            kind = next((field.type for field in structs.fields(kind) if field.encode_name == name), str)
        elif get_origin(kind) is dict and key:
            inner = get_args(kind)[1]
            # In a table of plain values, such as Spark's own settings, the dots belong to the name.
            name, _, key = key.partition(".") if _is_struct(inner) or get_origin(inner) is dict else (key, "", "")
            names.append(name)
            kind = inner
        else:
            return ([*names, key] if key else names), _read(kind, text)


def shown(kind: Any) -> str:
    return _shown_type(inspect.type_info(kind))


def _shown_type(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(map(str, kind.values))
    if isinstance(kind, inspect.UnionType):
        inner = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return " or ".join(dict.fromkeys(_shown_type(one) for one in inner))
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return f"a list of {_shown_type(kind.item_type)}"
    names = {
        inspect.StrType: "text",
        inspect.IntType: "a whole number",
        inspect.FloatType: "a number",
        inspect.BoolType: "true or false",
    }
    return names.get(type(kind), "a table")


def _shown_value(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _read(kind: Any, text: str) -> Any:
    """The value of a text by the type that is expected; what does not fit stays text, to be refused with its type."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if text[:1] not in ("[", "{"):
        if str in kinds:
            return text
        if any(get_origin(one) in (list, tuple) or one in (list, tuple) for one in kinds):
            return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _tagged(kind: Any) -> dict[str, Any]:
    """The Structs of a union, by their tags; none for any other type."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    if not kinds or not all(_is_struct(one) for one in kinds):
        return {}
    return {str(one.__struct_config__.tag): one for one in kinds}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
