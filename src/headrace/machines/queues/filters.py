"""Filter expressions over the headers, key and tags of messages.

    header.type = 'order' and (header.size > 10 or key like 'eu-%') and not tag in ('a', 'b')

`header.<name>` (or `header['any name']`) and `key` are text. Values are compared as numbers if one side is a number
literal, or if both sides are headers with numbers; otherwise as text. In `like` patterns, `%` matches anything, `_`
matches one character, and a backslash escapes them. `tag` stands for each tag in the header `headrace-tags`: `tag =
'a'` is true if one tag equals `a`. A missing value equals nothing and is neither less nor greater; `!=`, `not in` and
`not like` are the exact negations of `=`, `in` and `like`. `exists(header.x)` tests for presence.

An expression is compiled to closures once; its length, depth and number of conditions are bounded. Evaluation never
fails, whatever a message contains.

Evaluation happens on the event loop, so its cost is bounded as well: it must not be the product of the length of the
filter and the size of the message.

- A filter decodes the key, each header and the tags of a message once, however many conditions use them
  (`_FilteredMessage`), and finds headers by name and tags by value without a search. Only the first tags of a message
  count (`TAGS_MAX` of `model.message_headers`).
- A part of a pattern between two `%` is searched for in the whole value. The cost is linear in the value if the part is
  plain text, and the product of both lengths if it contains `_`. A filter has at most `SEARCHES_MAX` such parts, and
  those with `_` have at most `WILDCARD_LENGTH_MAX` characters in total. A pattern for tags is tried on each of them and
  counts as `TAG_SEARCHES`. Parts at the start and the end of a pattern are compared once.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.model.errors import InvalidConfig
from headrace.model.message_headers import Headers, tags_of
from headrace.model.safe_text import shortened

Filter = Callable[[bytes | None, Headers], bool]
"""Takes the key and the headers of a message."""

LENGTH_MAX = 4096
DEPTH_MAX = 32
CONDITIONS_MAX = 100
SEARCHES_MAX = 16
TAG_SEARCHES = 4
WILDCARD_LENGTH_MAX = 32
"""Total length of the pattern parts between two `%` that contain `_`."""

Number = int | float
_UNREAD: Any = object()


class _FilteredMessage:
    """The decoded values of a message, cached for all conditions of a filter."""

    __slots__ = ("_headers", "_key", "_tag_numbers", "_tags", "_texts", "_values")

    def __init__(self, key: bytes | None, headers: Headers) -> None:
        self._key: Any = key
        self._headers = headers
        self._values: dict[str, bytes | None] | None = None
        self._texts: dict[str, str | None] = {}
        self._tags: frozenset[str] = _UNREAD
        self._tag_numbers: frozenset[Number] = _UNREAD

    @property
    def key(self) -> str | None:
        key = self._key
        if isinstance(key, bytes):
            key = self._key = key.decode("utf-8", "surrogateescape")
        return key  # type: ignore[no-any-return]

    def header(self, name: str) -> str | None:
        """Return the last value of the header, like `header_value`."""
        if name not in self._texts:
            if self._values is None:
                self._values = dict(self._headers)
            value = self._values.get(name)
            self._texts[name] = None if value is None else value.decode("utf-8", "surrogateescape")
        return self._texts[name]

    @property
    def tags(self) -> frozenset[str]:
        if self._tags is _UNREAD:
            self._tags = tags_of(self._headers)
        return self._tags

    @property
    def tag_numbers(self) -> frozenset[Number]:
        """Return the numbers among the tags."""
        if self._tag_numbers is _UNREAD:
            self._tag_numbers = frozenset(number for tag in self.tags if (number := _as_number(tag)) is not None)
        return self._tag_numbers


_Condition = Callable[[_FilteredMessage], bool]
_Text = Callable[[_FilteredMessage], str | None]

_TOKEN = (
    r"\s*(?:(?P<number>-?[0-9]+(?:\.[0-9]+)?(?![A-Za-z0-9_.]))|(?P<text>'(?:[^']|'')*')"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.-]*)|(?P<sign><=|>=|!=|<>|[=<>()\[\],])|(?P<end>\Z))"
)
_DIGITS_MAX = 40
_NUMBER_LENGTH_MAX = 2 * _DIGITS_MAX + 2
_ANY = ""  # in a pattern: any one character
_Order = Callable[[Any, Any], bool]
_ORDERS: dict[str, _Order] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EQUAL, _UNEQUAL = "=", ("!=", "<>")
_COMPARISONS = (_EQUAL, *_UNEQUAL, *_ORDERS)
_HEADER = "header."


class InvalidFilter(InvalidConfig):
    """The text is not a valid filter; `position` is that of the error, from 0."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"invalid filter at character {position + 1}: {problem}")
        self.position = position


def compile_filter(text: str) -> Filter:
    """Compile a filter; raise `InvalidFilter` if the text is not a valid expression."""
    if len(text) > LENGTH_MAX:
        raise InvalidFilter(f"the filter is longer than {LENGTH_MAX} characters", LENGTH_MAX)
    parser = _FilterParser(_tokens(text))
    holds = parser.any_of(0)
    parser.expect("end", "and, or, or the end")
    return lambda key, headers: holds(_FilteredMessage(key, headers))


class _Token(NamedTuple):
    kind: str
    text: str
    position: int

    @property
    def symbol(self) -> str:
        """A keyword or a sign. Keywords are case-insensitive."""
        return self.text.lower() if self.kind in ("word", "sign") else ""

    @property
    def shown(self) -> str:
        return "the end" if self.kind == "end" else shortened(self.text)


def _tokens(text: str) -> list[_Token]:
    token = re.compile(_TOKEN)  # compiled on first use: keeps startup fast
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = token.match(text, position)
        if match is None:
            position += len(text[position:]) - len(text[position:].lstrip())
            what = "the text has no closing '" if text[position] == "'" else f"{text[position]!r} is not valid here"
            raise InvalidFilter(what, position)
        kind = match.lastgroup
        assert kind is not None
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        position = match.end()
    return tokens


class _FilterParser:
    """A recursive-descent parser; each method consumes the tokens of its rule and returns the compiled condition."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._conditions = 0
        self._searches = 0
        self._wildcard_length = 0

    def any_of(self, depth: int) -> _Condition:
        parts = [self._all_of(depth)]
        while self._takes("or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else lambda message: any(part(message) for part in parts)

    def expect(self, kind: str, what: str, text: str | None = None) -> _Token:
        token = self._tokens[self._next]
        if token.kind != kind or (text is not None and token.text != text):
            raise InvalidFilter(f"expected {what}, not {token.shown}", token.position)
        self._next += 1
        return token

    def _all_of(self, depth: int) -> _Condition:
        parts = [self._one(depth)]
        while self._takes("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda message: all(part(message) for part in parts)

    def _one(self, depth: int) -> _Condition:
        token = self._tokens[self._next]
        if depth > DEPTH_MAX:
            raise InvalidFilter(f"the filter is nested deeper than {DEPTH_MAX} levels", token.position)
        if self._takes("not"):
            inner = self._one(depth + 1)
            return lambda message: not inner(message)
        if self._takes("("):
            inner = self.any_of(depth + 1)
            self.expect("sign", ")", ")")
            return inner
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            problem = f"the filter has more than {CONDITIONS_MAX} conditions; `in ('a', 'b')` counts as one"
            raise InvalidFilter(problem, token.position)
        if self._takes("exists"):
            self.expect("sign", "(", "(")
            found = self._exists()
            self.expect("sign", ")", ")")
            return found
        if self._takes("tag"):
            return self._tag_condition()
        return self._condition()

    def _exists(self) -> _Condition:
        if self._takes("tag"):
            return lambda message: bool(message.tags)
        value = self._field()
        return lambda message: value(message) is not None

    def _tag_condition(self) -> _Condition:
        sign = self._tokens[self._next]
        if sign.text in _ORDERS:
            raise InvalidFilter("tags cannot be compared by order", sign.position)
        if sign.text == _EQUAL or sign.text in _UNEQUAL:
            self._next += 1
            return _tagged([self._literal()], is_negated=sign.text in _UNEQUAL)
        is_negated = self._takes("not")
        if self._takes("in"):
            return _tagged(self._literals(), is_negated=is_negated)
        holds = self._like(searches=TAG_SEARCHES)
        return lambda message: any(map(holds, message.tags)) is not is_negated

    def _condition(self) -> _Condition:
        left = self._field()
        sign = self._tokens[self._next]
        if sign.text not in _COMPARISONS:
            is_negated = self._takes("not")
            holds = _in(self._literals()) if self._takes("in") else self._like()
            return _tested(left, holds, is_negated=is_negated)
        self._next += 1
        is_negated = sign.text in _UNEQUAL
        order = _ORDERS.get(sign.text, operator.eq)
        if self._tokens[self._next].kind == "word":
            return _compared(left, self._field(), order, is_negated=is_negated)
        holds = _ordered(order, self._literal())
        return _tested(left, holds, is_negated=is_negated)

    def _like(self, searches: int = 0) -> Callable[[str], bool]:
        """`searches` is the cost of the pattern in addition to its parts between two `%`."""
        if not self._takes("like"):
            token = self._tokens[self._next]
            raise InvalidFilter(f"expected a comparison, like or in, not {token.shown}", token.position)
        token = self.expect("text", "a pattern in quotes")
        pieces = _pieces(_unquoted(token))
        middle = [piece for piece in pieces[1:-1] if piece]
        self._searches += searches + len(middle)
        if self._searches > SEARCHES_MAX:
            problem = f"the patterns have more than {SEARCHES_MAX} parts between two %"
            raise InvalidFilter(f"{problem} (a pattern for tags counts as {TAG_SEARCHES}); use fewer", token.position)
        self._wildcard_length += sum(len(piece) for piece in middle if _ANY in piece)
        if self._wildcard_length > WILDCARD_LENGTH_MAX:
            problem = f"the parts between two % that contain _ have more than {WILDCARD_LENGTH_MAX} characters in total"
            raise InvalidFilter(f"{problem}; write \\_ for a plain underscore, or use fewer", token.position)
        return _like(pieces)

    def _literals(self) -> list[str | Number]:
        self.expect("sign", "(", "(")
        literals = [self._literal()]
        while self._takes(","):
            literals.append(self._literal())
        self.expect("sign", ", or )", ")")
        return literals

    def _field(self) -> _Text:
        token = self.expect("word", "header.<name>, key, tag, exists, not or (")
        if token.symbol == "key":
            return lambda message: message.key
        if token.symbol == "header" and self._takes("["):
            name = _unquoted(self.expect("text", "the name of a header in quotes"))
            self.expect("sign", "]", "]")
        elif token.symbol.startswith(_HEADER) and len(token.text) > len(_HEADER):
            name = token.text[len(_HEADER) :]
        else:
            raise InvalidFilter(f"expected header.<name> or key, not {token.shown}", token.position)
        return lambda message: message.header(name)

    def _literal(self) -> str | Number:
        token = self._tokens[self._next]
        if token.kind != "number":
            return _unquoted(self.expect("text", "a number or a text in quotes"))
        self._next += 1
        number = _as_number(token.text)
        if number is None:
            raise InvalidFilter("the number is too long", token.position)
        return number

    def _takes(self, symbol: str) -> bool:
        """Consume the next token if it is this keyword or sign."""
        is_there = self._tokens[self._next].symbol == symbol
        self._next += is_there
        return is_there


def _unquoted(token: _Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _as_number(text: str) -> Number | None:
    if len(text) > _NUMBER_LENGTH_MAX:  # checked first, because the rest copies the text
        return None
    whole, point, fraction = text.removeprefix("-").partition(".")
    if not _are_digits(whole):
        return None
    if not point:
        return int(text)
    return float(text) if _are_digits(fraction) else None


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


# Conditions


def _tested(value: _Text, holds: Callable[[str], bool], *, is_negated: bool) -> _Condition:
    def test(message: _FilteredMessage) -> bool:
        text = value(message)
        return (text is not None and holds(text)) is not is_negated

    return test


def _tagged(literals: Sequence[str | Number], *, is_negated: bool) -> _Condition:
    """Test whether a tag equals one of the literals."""
    texts, numbers = _texts_and_numbers(literals)

    def test(message: _FilteredMessage) -> bool:
        is_there = not texts.isdisjoint(message.tags) or (bool(numbers) and not numbers.isdisjoint(message.tag_numbers))
        return is_there is not is_negated

    return test


def _compared(left: _Text, right: _Text, order: _Order, *, is_negated: bool) -> _Condition:
    def holds(message: _FilteredMessage) -> bool:
        first, second = left(message), right(message)
        if first is None or second is None:
            return is_negated
        numbers = _as_number(first), _as_number(second)
        return order(*((first, second) if None in numbers else numbers)) is not is_negated

    return holds


def _ordered(order: _Order, literal: str | Number) -> Callable[[str], bool]:
    if isinstance(literal, str):
        return lambda text: order(text, literal)

    def holds(text: str) -> bool:
        number = _as_number(text)
        return number is not None and order(number, literal)

    return holds


def _in(literals: Sequence[str | Number]) -> Callable[[str], bool]:
    texts, numbers = _texts_and_numbers(literals)
    return lambda text: text in texts or (bool(numbers) and _as_number(text) in numbers)


def _texts_and_numbers(literals: Sequence[str | Number]) -> tuple[frozenset[str], frozenset[Number]]:
    texts = frozenset(literal for literal in literals if isinstance(literal, str))
    return texts, frozenset(literal for literal in literals if not isinstance(literal, str))


# Patterns

_Piece = Sequence[str]
"""The characters of a pattern between two `%`, with `_ANY` for any one."""


def _like(pieces: Sequence[_Piece]) -> Callable[[str], bool]:
    """Match the pieces in order, each at its first position: one regular expression with many `.*` would backtrack over
    all positions. The last piece is compared at the end of the value only."""
    first, last = _matcher(pieces[0]), _matcher(pieces[-1])
    first_length, last_length = len(pieces[0]), len(pieces[-1])
    if len(pieces) == 1:
        return lambda text: len(text) == first_length and first(text, 0)
    searches = [_search(piece) for piece in pieces[1:-1]]

    def holds(text: str) -> bool:
        if not first(text, 0):
            return False
        end = first_length
        for search in searches:
            end = search(text, end)
            if end < 0:
                return False
        start = len(text) - last_length
        return start >= end and last(text, start)

    return holds


def _matcher(piece: _Piece) -> Callable[[str, int], bool]:
    """Return a function that tests whether the piece matches at a position."""
    if _ANY not in piece:
        plain = "".join(piece)
        return lambda text, position: text.startswith(plain, position)
    match = _regex(piece).match
    return lambda text, position: match(text, position) is not None


def _search(piece: _Piece) -> Callable[[str, int], int]:
    """Return a function that finds the end of the first match at or after a position, or -1."""
    if _ANY not in piece:
        plain = "".join(piece)
        length = len(plain)

        def find(text: str, position: int) -> int:
            found = text.find(plain, position)
            return found + length if found >= 0 else -1

        return find
    search = _regex(piece).search

    def find_any(text: str, position: int) -> int:
        match = search(text, position)
        return match.end() if match is not None else -1

    return find_any


def _regex(piece: _Piece) -> re.Pattern[str]:
    return re.compile("".join("." if character == _ANY else re.escape(character) for character in piece), re.DOTALL)


def _pieces(pattern: str) -> list[list[str]]:
    """Split a pattern at each `%`."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            pieces.append([])
        elif character == "_":
            pieces[-1].append(_ANY)
        else:
            pieces[-1].append(next(characters, "\\") if character == "\\" else character)
    return pieces
