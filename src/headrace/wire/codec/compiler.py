"""Compile the decoder and the encoder of one (class, version).

- Each is one function without calls of other compiled functions.
- Adjacent values of fixed size are a *run*, which one `struct` call reads or writes. The run includes the first byte of
  a length that follows it when decoding, and that length when encoding.
- The encoder joins all pieces, except that it passes values of type `records` through without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from struct import Struct
from typing import Any, Final

from headrace.model.errors import MalformedFrame
from headrace.wire.codec.primitives import ONE_BYTE, read_uvarint, skip_tags, tag_count, uuid_of, uvarint, uvarint_rest
from headrace.wire.codec.schema import UUID16, Array, Chunk, Field, Fixed, Sized, Type, layout


class FunctionSource:
    """The source of one function: its lines, the constants that it uses, and unique names for variables."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = dict(constants)
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """Return the name of a constant; the same value always has the same name."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(stem)
        self.constants[name] = value
        return name

    def struct_method(self, method: str, letters: str) -> str:
        """Return the name of the method `pack` or `unpack_from` of the struct with these letters."""
        name = f"{method}_{letters.replace('?', 'o')}"
        if name not in self.constants:
            self.constants[name] = getattr(Struct(">" + letters), method)
        return name

    def function(self, name: str, title: str) -> Callable[..., Any]:
        """Compile the lines; `title` is the file name in tracebacks."""
        exec(compile("\n".join(self._lines) + "\n", f"<{title}>", "exec"), self.constants)
        function: Callable[..., Any] = self.constants[name]
        return function


class _Compiler:
    """The state that both compilers have."""

    def __init__(self, cls: type, version: int, constants: dict[str, Any]) -> None:
        declared = layout(cls)
        assert declared.min_version <= version <= declared.max_version, (cls, version)
        self._cls = cls
        self._version = version
        self._flexible = version >= declared.flexible_since
        self._source = FunctionSource(constants)
        self._run: list[tuple[str, str]] = []  # (struct letter, variable or expression)


ELEMENTS_MAX: Final = 1_000_000

_DECODER_CONSTANTS: Final = {
    "MalformedFrame": MalformedFrame,
    "read_uvarint": read_uvarint,
    "skip_tags": skip_tags,
    "tag_count": tag_count,
    "unpack_from": struct.unpack_from,
    "uuid_of": uuid_of,
    "uvarint_rest": uvarint_rest,
}


def compile_decoder(cls: type, version: int) -> Callable[[memoryview, int], Any]:
    return _DecoderCompiler(cls, version).compile()


class _DecoderCompiler(_Compiler):
    def __init__(self, cls: type, version: int) -> None:
        super().__init__(cls, version, _DECODER_CONSTANTS)
        self._uuids: list[str] = []  # variables of the run that are still 16 bytes, not UUIDs

    def compile(self) -> Callable[[memoryview, int], Any]:
        source = self._source
        with source.block("def decode(buffer, position):"):
            source.line("end = len(buffer)")
            message = self._read_struct(self._cls, self._cls.__name__)
            # Like Kafka, ignore bytes after the message: librdkafka 2.16 sends three in Metadata v13.
            source.line(f"return {message}")
        return source.function("decode", f"decode {self._cls.__name__} v{self._version}")

    def _read_struct(self, cls: type, path: str) -> str:
        """Write the code that decodes a struct; return the expression that creates it."""
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
        """Write the code that decodes a value; return its variable."""
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
        """Write the code that decodes a length, which is -1 for null; it ends the run."""
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
                self._raise_malformed(path, f"{{{length}}} bytes where {{end - position}} remain")
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
                self._raise_malformed(path, f"{{{count}}} elements where {{end - position}} bytes remain")
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
        if nullable:
            with self._source.block(f"elif {length} == -1:"):
                self._source.line(f"{variable} = None")
        if not (nullable and self._flexible):  # otherwise -1 is the only negative length
            with self._source.block("else:"):
                self._raise_malformed(path, f"length {{{length}}}")

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
            self._raise_malformed(path, "a tagged field of {size} bytes where {end - position} remain")
        for field in tagged:
            with source.block(f"if {tag} == {field.tag}:"):
                nullable = self._version >= field.nullable
                value = self._read(field.type, nullable, field.name, f"{path}.{field.name}")
                self._end_run()
                source.line(f"{values[field.name]} = {value}")
                with source.block(f"if position != {tag_end}:"):
                    self._raise_malformed(f"{path}.{field.name}", "a tagged field of another size")
        source.line(f"position = {tag_end}")

    def _end_run(self) -> None:
        """Write the code that decodes the run."""
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

    def _raise_malformed(self, path: str, what: str) -> None:
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


_ENCODER_CONSTANTS: Final = {"ONE_BYTE": ONE_BYTE, "join": b"".join, "pack": struct.pack, "uvarint": uvarint}


def compile_encoder(cls: type, version: int) -> Callable[[Any], list[Chunk]]:
    return _EncoderCompiler(cls, version, _ENCODER_CONSTANTS).compile()


class _EncoderCompiler(_Compiler):
    def compile(self) -> Callable[[Any], list[Chunk]]:
        source = self._source
        with source.block("def encode(message):"):
            source.line("chunks = []")
            source.line("parts = []")
            self._write_struct(self._cls, "message")
            with source.block("if parts or not chunks:"):
                source.line("chunks.append(join(parts))")
            source.line("return chunks")
        return source.function("encode", f"encode {self._cls.__name__} v{self._version}")

    def _write_struct(self, cls: type, variable: str) -> None:
        tagged: list[Field] = []
        for field in layout(cls).fields:
            if not field.in_version(self._version):
                continue
            if field.tag is not None:
                tagged.append(field)
            else:
                self._write(field.type, self._version >= field.nullable, f"{variable}.{field.name}")
        if self._flexible:
            self._write_tags(tagged, variable)
        self._end_run()

    def _write(self, kind: Type, nullable: bool, value: str) -> None:
        if isinstance(kind, Fixed):
            self._run.append((kind.letter, f"{value}.bytes" if kind is UUID16 else value))
        elif isinstance(kind, Sized):
            self._write_sized(kind, nullable, value)
        elif isinstance(kind, Array):
            self._write_array(kind, nullable, value)
        else:
            self._write_part(kind, nullable, value)

    def _write_part(self, kind: type, nullable: bool, value: str) -> None:
        variable = self._source.name("part")
        self._source.line(f"{variable} = {value}")
        if not nullable:
            self._end_run()
            self._write_struct(kind, variable)
            return
        self._run.append(("b", f"-1 if {variable} is None else 1"))
        self._end_run()
        with self._source.block(f"if {variable} is not None:"):
            self._write_struct(kind, variable)

    def _write_sized(self, kind: Sized, nullable: bool, value: str) -> None:
        source = self._source
        data = source.name("data")
        source.line(f"{data} = {value}")
        encoded = f"{data}.encode()" if kind.name == "string" else data
        self._write_length_of(data, encoded, nullable, "b''", kind.legacy_letter)
        if kind.name != "records":
            source.line(f"parts.append({data})")
            return
        with source.block(f"if len({data}):"):
            source.line("chunks.append(join(parts))")
            source.line(f"chunks.append({data})")
            source.line("parts = []")

    def _write_array(self, kind: Array, nullable: bool, value: str) -> None:
        source = self._source
        items = source.name("items")
        source.line(f"{items} = {value}")
        self._write_length_of(items, items, nullable, "()", "i")
        if isinstance(kind.of, Fixed) and kind.of is not UUID16:
            source.line(f"parts.append(pack(f'>{{len({items})}}{kind.of.letter}', *{items}))")
            return
        item = source.name("item")
        with source.block(f"for {item} in {items}:"):
            if isinstance(kind.of, type):
                self._write_struct(kind.of, item)
            else:
                self._write(kind.of, False, item)
                self._end_run()

    def _write_length_of(self, variable: str, encoded: str, nullable: bool, empty: str, legacy_letter: str) -> None:
        """Write the code that replaces a value by its `encoded` form, or null by `empty`, and encodes its length. It
        ends the run."""
        source, length = self._source, self._source.name("length")
        if nullable:
            with source.block(f"if {variable} is None:"):
                source.line(f"{length} = {0 if self._flexible else -1}")
                source.line(f"{variable} = {empty}")
        with source.block("else:") if nullable else nullcontext():
            if encoded != variable:
                source.line(f"{variable} = {encoded}")
            source.line(f"{length} = len({variable}){' + 1' if self._flexible else ''}")
        if not self._flexible:
            self._run.append((legacy_letter, length))
            self._end_run()
            return
        before = self._packed(self._run)
        in_run = self._packed([*self._run, ("B", length)])
        separately = f"{before} + uvarint({length})" if self._run else f"uvarint({length})"
        self._source.line(f"parts.append({in_run} if {length} < 128 else {separately})")
        self._run.clear()

    def _write_tags(self, tagged: list[Field], variable: str) -> None:
        source = self._source
        if not tagged:
            self._run.append(("B", "0"))
            return
        sent = {field.tag: self._differs(field, f"{variable}.{field.name}") for field in tagged}
        count = source.name("tags")
        source.line(f"{count} = {' + '.join(f'({test})' for test in sent.values())}")
        self._run.append(("B", count))
        self._end_run()
        with source.block(f"if {count}:"):
            for field in sorted(tagged, key=lambda field: field.tag or 0):
                with source.block(f"if {sent[field.tag]}:"):
                    self._write_tagged(field, f"{variable}.{field.name}")

    def _write_tagged(self, field: Field, value: str) -> None:
        """Write the value into separate parts, because its size precedes it."""
        source = self._source
        outer = source.name("outer")
        source.line(f"{outer} = parts")
        source.line("parts = []")
        nullable = self._version >= field.nullable
        self._write(field.type, nullable, value)
        self._end_run()
        source.line("parts = join(parts)")
        source.line(f"{outer}.append(uvarint({field.tag}) + uvarint(len(parts)) + parts)")
        source.line(f"parts = {outer}")

    def _differs(self, field: Field, value: str) -> str:
        if field.default is None:
            return f"{value} is not None"
        if field.default == []:
            return f"len({value}) > 0"
        return f"{value} != {self._source.constant('default', field.default)}"

    def _end_run(self) -> None:
        if self._run:
            self._source.line(f"parts.append({self._packed(self._run)})")
            self._run.clear()

    def _packed(self, run: list[tuple[str, str]]) -> str:
        """Return the expression for the bytes of a run."""
        letters = "".join(letter for letter, _ in run)
        values = ", ".join(value for _, value in run)
        if letters == "B":
            return f"ONE_BYTE[{values}]"
        return f"{self._source.struct_method('pack', letters)}({values})"
