"""Compiles the encoder of one (class, version).

The whole message becomes one function that gathers small pieces and joins them; a value of type `records`
is handed on as it is. Neighbouring values of fixed size, with the length that follows them, are written by
one `struct.pack`: the run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from headrace.wire.codec.primitives import ONE_BYTE, uvarint
from headrace.wire.codec.schema import UUID16, Array, Chunk, Field, Fixed, Sized, Type, layout
from headrace.wire.codec.source import FunctionSource

_CONSTANTS: Final = {"ONE_BYTE": ONE_BYTE, "join": b"".join, "pack": struct.pack, "uvarint": uvarint}


def compile_encoder(cls: type, version: int) -> Callable[[Any], list[Chunk]]:
    declared = layout(cls)
    assert declared.min_version <= version <= declared.max_version, (cls, version)
    return _EncoderCompiler(cls, version, version >= declared.flexible_since).compile()


class _EncoderCompiler:
    def __init__(self, cls: type, version: int, flexible: bool) -> None:
        self._cls = cls
        self._version = version
        self._flexible = flexible
        self._source = FunctionSource(_CONSTANTS)
        self._run: list[tuple[str, str]] = []  # (struct letter, expression)

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
        data, length = source.name("data"), source.name("length")
        of_string = kind.name == "string"
        plus = " + 1" if self._flexible else ""
        source.line(f"{data} = {value}")
        if nullable:
            with source.block(f"if {data} is None:"):
                source.line(f"{length} = {0 if self._flexible else -1}")
                source.line(f"{data} = b''")
            with source.block("else:"):
                if of_string:
                    source.line(f"{data} = {data}.encode()")
                source.line(f"{length} = len({data}){plus}")
        else:
            if of_string:
                source.line(f"{data} = {data}.encode()")
            source.line(f"{length} = len({data}){plus}")
        self._write_length(kind.legacy_letter, length)
        if kind.name != "records":
            source.line(f"parts.append({data})")
            return
        with source.block(f"if len({data}):"):
            source.line("chunks.append(join(parts))")
            source.line(f"chunks.append({data})")
            source.line("parts = []")

    def _write_array(self, kind: Array, nullable: bool, value: str) -> None:
        source = self._source
        items, count = source.name("items"), source.name("count")
        plus = " + 1" if self._flexible else ""
        source.line(f"{items} = {value}")
        if nullable:
            with source.block(f"if {items} is None:"):
                source.line(f"{count} = {0 if self._flexible else -1}")
                source.line(f"{items} = ()")
            with source.block("else:"):
                source.line(f"{count} = len({items}){plus}")
        else:
            source.line(f"{count} = len({items}){plus}")
        self._write_length("i", count)
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

    def _write_length(self, legacy_letter: str, length: str) -> None:
        """Write a length; it ends the run."""
        if not self._flexible:
            self._run.append((legacy_letter, length))
            self._end_run()
            return
        before = self._packed(self._run)
        together = self._packed([*self._run, ("B", length)])
        apart = f"{before} + uvarint({length})" if self._run else f"uvarint({length})"
        self._source.line(f"parts.append({together} if {length} < 128 else {apart})")
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
        """Write the value into parts of its own, because its size comes first."""
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
