"""Compiles the decoder of one (class, version).

The whole message becomes one function without calls to others of ours. Neighbouring values of fixed size,
together with the first byte of the length that follows them, are read by one `struct.unpack_from`: the run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.primitives import read_uvarint, skip_tags, tag_count, uuid_of, uvarint_rest
from headrace.wire.codec.schema import UUID16, Array, Field, Fixed, Sized, Type, layout
from headrace.wire.codec.source import FunctionSource

ELEMENTS_MAX: Final = 1_000_000

_CONSTANTS: Final = {
    "MalformedFrame": MalformedFrame,
    "read_uvarint": read_uvarint,
    "skip_tags": skip_tags,
    "tag_count": tag_count,
    "unpack_from": struct.unpack_from,
    "uuid_of": uuid_of,
    "uvarint_rest": uvarint_rest,
}


def compile_decoder(cls: type, version: int) -> Callable[[memoryview, int], Any]:
    declared = layout(cls)
    assert declared.min_version <= version <= declared.max_version, (cls, version)
    return _DecoderCompiler(cls, version, version >= declared.flexible_since).compile()


class _DecoderCompiler:
    def __init__(self, cls: type, version: int, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = FunctionSource(_CONSTANTS)
        self._run: list[tuple[str, str]] = []  # (struct letter, variable)
        self._uuids: list[str] = []  # variables of the run that still hold 16 bytes

    def compile(self) -> Callable[[memoryview, int], Any]:
        source = self._source
        with source.block("def decode(buffer, position):"):
            source.line("end = len(buffer)")
            message = self._read_struct(self._cls, self._cls.__name__)
            # Bytes behind the message are let be, as by Kafka: librdkafka 2.16 leaves three in Metadata v13.
            source.line(f"return {message}")
        return source.function("decode", f"decode {self._cls.__name__} v{self._version}")

    def _read_struct(self, cls: type, path: str) -> str:
        """Write the reading of a struct; return the expression that makes it."""
        values: dict[str, str] = {}
        tagged: list[Field] = []
        for field in layout(cls).fields:
            if not field.in_version(self._version):
                values[field.name] = self._default(field)
            elif field.tag is not None:
                tagged.append(field)
            else:
                nullable = self._version >= field.nullable
                values[field.name] = self._read(field.type, nullable, field.name, f"{path}.{field.name}")
        if self._flexible:
            self._read_tags(tagged, values, path)
        self._end_run()
        make = self._source.constant(cls.__name__, cls)
        return f"{make}({', '.join(values[field.name] for field in layout(cls).fields)})"

    def _default(self, field: Field) -> str:
        if field.default == []:
            return "[]"
        if field.default is None or isinstance(field.default, bool | int | float | str | bytes):
            return repr(field.default)
        return self._source.constant("default", field.default)

    def _read(self, kind: Type, nullable: bool, stem: str, path: str) -> str:
        """Write the reading of a value; return the variable that holds it."""
        if isinstance(kind, Fixed):
            variable = self._source.name(stem)
            self._run.append((kind.letter, variable))
            if kind is UUID16:
                self._uuids.append(variable)
            return variable
        if isinstance(kind, Sized):
            return self._read_sized(kind, nullable, stem, path)
        if isinstance(kind, Array):
            return self._read_array(kind, nullable, stem, path)
        return self._read_part(kind, nullable, stem, path)

    def _read_part(self, kind: type, nullable: bool, stem: str, path: str) -> str:
        variable = self._source.name(stem)
        if not nullable:
            self._end_run()
            self._source.line(f"{variable} = {self._read_struct(kind, path)}")
            return variable
        present = self._source.name("present")
        self._run.append(("b", present))
        self._end_run()
        self._source.line(f"{variable} = None")
        with self._source.block(f"if {present} >= 0:"):
            self._source.line(f"{variable} = {self._read_struct(kind, path)}")
        return variable

    def _read_length(self, legacy_letter: str) -> str:
        """Write the reading of a length, which is -1 for null; it ends the run."""
        length = self._source.name("length")
        self._run.append(("B" if self._flexible else legacy_letter, length))
        self._end_run()
        if self._flexible:
            with self._source.block(f"if {length} > 127:"):
                self._source.line(f"{length}, position = uvarint_rest(buffer, position, {length})")
            self._source.line(f"{length} -= 1")
        return length

    def _read_sized(self, kind: Sized, nullable: bool, stem: str, path: str) -> str:
        source = self._source
        length = self._read_length(kind.legacy_letter)
        variable = source.name(stem)
        with source.block(f"if {length} >= 0:"):
            source.line(f"stop = position + {length}")
            with source.block("if stop > end:"):
                self._refuse(path, f"{{{length}}} bytes where {{end - position}} remain")
            source.line(
                {
                    "string": f"{variable} = str(buffer[position:stop], 'utf-8')",
                    "bytes": f"{variable} = bytes(buffer[position:stop])",
                    "records": f"{variable} = buffer[position:stop]",
                }[kind.name]
            )
            source.line("position = stop")
        self._null(variable, length, nullable, path)
        return variable

    def _read_array(self, kind: Array, nullable: bool, stem: str, path: str) -> str:
        source = self._source
        count = self._read_length("i")
        variable = source.name(stem)
        size_bytes_min = self._size_bytes_min(kind.of)
        with source.block(f"if {count} >= 0:"):
            with source.block(f"if {count} * {size_bytes_min} > end - position or {count} > {ELEMENTS_MAX}:"):
                self._refuse(path, f"{{{count}}} elements where {{end - position}} bytes remain")
            if isinstance(kind.of, Fixed) and kind.of is not UUID16:
                letters = f"f'>{{{count}}}{kind.of.letter}'"
                source.line(f"{variable} = list(unpack_from({letters}, buffer, position))")
                source.line(f"position += {count} * {kind.of.size_bytes}")
            else:
                source.line(f"{variable} = []")
                with source.block(f"for _ in range({count}):"):
                    if isinstance(kind.of, type):
                        element = self._read_struct(kind.of, path)
                    else:
                        element = self._read(kind.of, False, "element", path)
                        self._end_run()
                    source.line(f"{variable}.append({element})")
        self._null(variable, count, nullable, path)
        return variable

    def _null(self, variable: str, length: str, nullable: bool, path: str) -> None:
        with self._source.block(f"elif {length} == -1:" if nullable else "else:"):
            if nullable:
                self._source.line(f"{variable} = None")
            else:
                self._refuse(path, f"length {{{length}}}")
        if nullable and not self._flexible:
            with self._source.block("else:"):
                self._refuse(path, f"length {{{length}}}")

    def _read_tags(self, tagged: list[Field], values: dict[str, str], path: str) -> None:
        source = self._source
        count = source.name("tags")
        self._run.append(("B", count))
        self._end_run()
        if not tagged:
            with source.block(f"if {count}:"):
                source.line(f"position = skip_tags(buffer, position, {count}, end)")
            return
        for field in tagged:
            values[field.name] = source.name(field.name)
            source.line(f"{values[field.name]} = {self._default(field)}")
        with source.block(f"if {count}:"):
            source.line(f"{count}, position = tag_count(buffer, position, {count})")
            with source.block(f"for _ in range({count}):"):
                self._read_tagged(tagged, values, path)

    def _read_tagged(self, tagged: list[Field], values: dict[str, str], path: str) -> None:
        source = self._source
        tag, tag_end = source.name("tag"), source.name("tag_end")
        source.line(f"{tag}, position = read_uvarint(buffer, position)")
        source.line("size, position = read_uvarint(buffer, position)")
        source.line(f"{tag_end} = position + size")
        with source.block(f"if {tag_end} > end:"):
            self._refuse(path, "a tagged field of {size} bytes where {end - position} remain")
        for field in tagged:
            with source.block(f"if {tag} == {field.tag}:"):
                nullable = self._version >= field.nullable
                value = self._read(field.type, nullable, field.name, f"{path}.{field.name}")
                self._end_run()
                source.line(f"{values[field.name]} = {value}")
                with source.block(f"if position != {tag_end}:"):
                    self._refuse(f"{path}.{field.name}", "a tagged field of another size")
        source.line(f"position = {tag_end}")

    def _end_run(self) -> None:
        """Write the reading of what has gathered in the run."""
        if not self._run:
            return
        letters = "".join(letter for letter, _ in self._run)
        variables = ", ".join(variable for _, variable in self._run)
        if letters == "B":
            self._source.line(f"{variables} = buffer[position]")
        else:
            unpack = self._source.struct_method("unpack_from", letters)
            self._source.line(f"{variables}, = {unpack}(buffer, position)")
        self._source.line(f"position += {struct.calcsize('>' + letters)}")
        for variable in self._uuids:
            self._source.line(f"{variable} = uuid_of({variable})")
        self._run.clear()
        self._uuids.clear()

    def _refuse(self, path: str, what: str) -> None:
        self._source.line(f'raise MalformedFrame(f"{path} v{self._version}: {what}")')

    def _size_bytes_min(self, kind: Type) -> int:
        if isinstance(kind, Fixed):
            return kind.size_bytes
        if isinstance(kind, Sized):
            return 1 if self._flexible else struct.calcsize(kind.legacy_letter)
        if isinstance(kind, Array):
            return 1 if self._flexible else 4
        fields = [f for f in layout(kind).fields if f.in_version(self._version) and f.tag is None]
        sizes = [
            1 if self._version >= f.nullable and isinstance(f.type, type) else self._size_bytes_min(f.type)
            for f in fields
        ]
        return sum(sizes) + self._flexible
