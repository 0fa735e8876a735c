"""Check the SQL schema of JSON values, `id BIGINT, tags ARRAY<STRING>`, before Spark parses it.

Spark parses the schema of a data source in Java, and its error names a position in a text that the user never wrote.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

from headrace.model.errors import InvalidConfig

_TOKEN: Final = re.compile(
    r"""\s+|--[^\n]*|/\*.*?\*/|`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|.""", re.DOTALL
)
_TYPES: Final = """
    boolean tinyint byte smallint short int integer bigint long float real double date timestamp timestamp_ntz
    timestamp_ltz time string decimal dec numeric char character varchar void variant
"""
_PLAIN: Final = frozenset(_TYPES.split())
_NESTED: Final = ("array", "struct")
_SIZED: Final = {"decimal": 2, "dec": 2, "numeric": 2, "char": 1, "character": 1, "varchar": 1, "time": 1}
_MUST_BE_SIZED: Final = ("char", "character", "varchar")
_DIGITS_MAX: Final = 38
_OF_ITEMS: Final = ", of its items"
_NOT_IN_JSON: Final = ("map", "binary")


def check_json_schema(text: str) -> None:
    """Raises InvalidConfig."""
    try:
        _SchemaParser(text).parse()
    except _Unexpected as error:
        raise InvalidConfig(f"valueSchema is not a list of columns such as `id BIGINT, name STRING`: {error}") from None


class _Unexpected(Exception):
    """The schema is not valid here."""


class _SchemaParser:
    def __init__(self, text: str) -> None:
        self._tokens = [
            token for token in _TOKEN.findall(text) if not token.isspace() and not token.startswith(("--", "/*"))
        ]
        self._at = 0

    def parse(self) -> None:
        self._columns()
        if self._next:
            raise _Unexpected(f"there is {self._next!r} where a comma or the end was expected")

    @property
    def _next(self) -> str:
        """The next token in lower case; empty at the end."""
        return self._tokens[self._at].lower() if self._at < len(self._tokens) else ""

    def _take(self, *expected: str) -> bool:
        if self._next not in expected:
            return False
        self._at += 1
        return True

    def _expect(self, token: str, after: str) -> None:
        if not self._take(token):
            raise _Unexpected(f"{token!r} is missing after {after}")

    def _columns(self) -> None:
        while True:
            name = self._word("the name of a column")
            self._take(":")
            self._type(f"the type of the column {name}")
            if self._take("not"):
                self._expect("null", "NOT")
            if self._take("comment"):
                self._at += 1
            if not self._take(","):
                return

    def _word(self, what: str) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ""
        if re.fullmatch(r"\w+|`.+`", token, re.DOTALL) is None:
            raise _Unexpected(f"{what} is missing{f' before {token!r}' if token else ' at the end'}")
        if not token.isascii() and not token.startswith("`"):
            raise _Unexpected(f"{token} must be in backticks: `{token}`")
        self._at += 1
        return token

    def _type(self, what: str) -> None:
        written = self._word(what)
        name = written.lower()
        if name in _NOT_IN_JSON:
            raise _Unexpected(f"{what} is {written}, and JSON has no such type")
        if name in _NESTED:
            self._expect("<", written)
            if name == "struct":
                self._columns()
            else:
                self._type(f"{what.removesuffix(_OF_ITEMS)}{_OF_ITEMS}")
            self._expect(">", f"the content of {written}")
        elif name == "interval":
            while self._take("year", "month", "day", "hour", "minute", "second", "to"):
                pass
        elif name in _PLAIN:
            self._size(name, written)
            self._suffix(name)
        else:
            near = difflib.get_close_matches(name, [*_PLAIN, *_NESTED], n=1)
            hint = f" (did you mean {near[0].upper()}?)" if near else ""
            raise _Unexpected(f"{what} is {written}, which is no type{hint}")

    def _size(self, name: str, written: str) -> None:
        if self._next != "(" and name not in _MUST_BE_SIZED:
            return
        sizes: list[int] = []
        self._expect("(", written)
        while not sizes or self._take(","):
            size = self._word(f"a number in {written}(...)")
            if not size.isdecimal():
                raise _Unexpected(f"{size!r} in {written}(...) is not a number")
            sizes.append(int(size))
        self._expect(")", f"{written}(...")
        if len(sizes) > _SIZED.get(name, 0):
            raise _Unexpected(f"the type {written} takes {_SIZED.get(name, 'no')} numbers, not {len(sizes)}")
        if _SIZED[name] == 2 and (sizes[0] > _DIGITS_MAX or sizes[-1] > sizes[0]):
            raise _Unexpected(f"{written} takes at most {_DIGITS_MAX} digits, of which some follow the point")

    def _suffix(self, name: str) -> None:
        if name == "string" and self._take("collate"):
            self._word("the collation")
        if name == "timestamp" and self._take("with"):
            self._expect("local", "WITH")
        elif name not in ("time", "timestamp") or not self._take("without"):
            return
        self._expect("time", "the type")
        self._expect("zone", "TIME")
