"""Filters: which messages are wanted, by their headers, key and tags.

    header.type = 'order' and (header.size > 10 or key like 'eu-%') and not tag in ('a', 'b')

`header.<name>` (or `header['any name']`) and `key` are text. A comparison with a number is one of numbers, and so is
one of two headers that are both numbers; every other one is of text. `like` knows `%` (anything), `_` (one character)
and a backslash that takes their meaning away. `tag` stands for each of the tags in the header `headrace-tags`: `tag =
'a'` asks whether there is one that equals. What is not there equals nothing and is neither less nor greater; `!=`,
`not in` and `not like` are true exactly where `=`, `in` and `like` are not. `exists(header.x)` asks for it alone.

An expression becomes closures once; its length and depth are bounded. A value is compared as it is: nothing in a
message can make a filter fail.

Evaluation happens on the event loop, so its cost is bounded, too. A part of a pattern that stands between two `%` is
searched for in the whole value: linear in the value if it is plain text (`re` searches for a literal with an overlap
table), but the product of both lengths if it contains `_`. All parts of the second kind in one filter may therefore
have only `WILDCARD_LENGTH_MAX` characters together. Parts at the start and at the end of a pattern are compared once.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.model.errors import InvalidConfig
from headrace.model.message_headers import Headers, header_of, tags_of
from headrace.model.safe_text import shortened

Filter = Callable[[bytes | None, Headers], bool]
"""Takes the key and the headers of a message."""

LENGTH_MAX = 4096
DEPTH_MAX = 32
WILDCARD_LENGTH_MAX = 32
"""Of all parts of patterns that contain `_` and are searched for anywhere in a value."""

Number = int | float
_Text = Callable[[bytes | None, Headers], str | None]

_TOKEN = (
    r"\s*(?:(?P<number>-?[0-9]+(?:\.[0-9]+)?(?![A-Za-z0-9_.]))|(?P<text>'(?:[^']|'')*')"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.-]*)|(?P<sign><=|>=|!=|<>|[=<>()\[\],])|(?P<end>\Z))"
)
_DIGITS_MAX = 40
_Order = Callable[[Any, Any], bool]
_ORDERS: dict[str, _Order] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUAL, _UNEQUAL = "=", ("!=", "<>")
_COMPARISONS = (_EQUAL, *_UNEQUAL, *_ORDERS)
_HEADER = "header."


class InvalidFilter(InvalidConfig):
    """The text is no filter; `position` is where that shows, from 0."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"the filter is not understood at character {position + 1}: {problem}")
        self.position = position


def compile_filter(text: str) -> Filter:
    """Raises `InvalidFilter` for anything that is no expression."""
    if len(text) > LENGTH_MAX:
        raise InvalidFilter(f"it is longer than {LENGTH_MAX} characters", LENGTH_MAX)
    parser = _Parser(_tokens(text))
    found = parser.any_of(0)
    parser.expect("end", "and, or, or the end")
    return found


class _Token(NamedTuple):
    kind: str
    text: str
    position: int

    @property
    def word(self) -> str:
        """Keywords are written in any case."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def shown(self) -> str:
        return "the end" if self.kind == "end" else shortened(self.text)


def _tokens(text: str) -> list[_Token]:
    token = re.compile(_TOKEN)  # here and not above: no start of a broker needs it
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = token.match(text, position)
        if match is None:
            position += len(text[position:]) - len(text[position:].lstrip())
            what = "a text without its closing '" if text[position] == "'" else f"{text[position]!r} means nothing here"
            raise InvalidFilter(what, position)
        kind = match.lastgroup
        assert kind is not None
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        position = match.end()
    return tokens


class _Parser:
    """Goes over the tokens once; each method takes what it is named after and returns it compiled."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._wildcard_length = 0

    def any_of(self, depth: int) -> Filter:
        parts = [self._all_of(depth)]
        while self._takes_word("or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else _any_of(parts)

    def expect(self, kind: str, what: str, text: str | None = None) -> _Token:
        token = self._tokens[self._next]
        if token.kind != kind or (text is not None and token.text != text):
            raise InvalidFilter(f"expected {what}, not {token.shown}", token.position)
        self._next += 1
        return token

    def _all_of(self, depth: int) -> Filter:
        parts = [self._one(depth)]
        while self._takes_word("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else _all_of(parts)

    def _one(self, depth: int) -> Filter:
        token = self._tokens[self._next]
        if depth > DEPTH_MAX:
            raise InvalidFilter(f"it is nested deeper than {DEPTH_MAX}", token.position)
        if self._takes_word("not"):
            return _negated(self._one(depth + 1))
        if self._takes_sign("("):
            inner = self.any_of(depth + 1)
            self.expect("sign", ")", ")")
            return inner
        if self._takes_word("exists"):
            self.expect("sign", "(", "(")
            found = self._exists()
            self.expect("sign", ")", ")")
            return found
        if self._takes_word("tag"):
            return self._tag_condition()
        return self._condition()

    def _exists(self) -> Filter:
        if self._takes_word("tag"):
            return lambda _key, headers: bool(tags_of(headers))
        value = self._field()
        return lambda key, headers: value(key, headers) is not None

    def _tag_condition(self) -> Filter:
        sign = self._tokens[self._next]
        if sign.text in _ORDERS:
            raise InvalidFilter("tags are not compared by order", sign.position)
        if sign.text == _EQUAL or sign.text in _UNEQUAL:
            self._next += 1
            holds = _equal_to(self._literal())
            is_negated = sign.text in _UNEQUAL
        else:
            holds, is_negated = self._like_or_in()

        def condition(_key: bytes | None, headers: Headers) -> bool:
            return any(holds(tag) for tag in tags_of(headers)) is not is_negated

        return condition

    def _condition(self) -> Filter:
        left = self._field()
        sign = self._tokens[self._next]
        if sign.text not in _COMPARISONS:
            holds, is_negated = self._like_or_in()
            return _tested(left, holds, is_negated=is_negated)
        self._next += 1
        is_negated = sign.text in _UNEQUAL
        if self._tokens[self._next].kind == "word":
            return _compared(left, self._field(), _ORDERS.get(sign.text, operator.eq), is_negated=is_negated)
        literal = self._literal()
        order = _ORDERS.get(sign.text)
        holds = _equal_to(literal) if order is None else _ordered(order, literal)
        return _tested(left, holds, is_negated=is_negated)

    def _like_or_in(self) -> tuple[Callable[[str], bool], bool]:
        is_negated = self._takes_word("not")
        if self._takes_word("like"):
            token = self.expect("text", "a pattern in quotes")
            pieces = _pieces(_unquoted(token))
            self._wildcard_length += sum(len(piece) for piece in pieces[1:-1] if "." in piece)
            if self._wildcard_length > WILDCARD_LENGTH_MAX:
                problem = f"the parts between two % that contain _ are longer than {WILDCARD_LENGTH_MAX} together"
                raise InvalidFilter(f"{problem}; write \\_ for a plain underscore, or use fewer", token.position)
            return _like(pieces), is_negated
        if self._takes_word("in"):
            self.expect("sign", "(", "(")
            literals = [self._literal()]
            while self._takes_sign(","):
                literals.append(self._literal())
            self.expect("sign", ", or )", ")")
            return _in(literals), is_negated
        token = self._tokens[self._next]
        raise InvalidFilter(f"expected a comparison, like or in, not {token.shown}", token.position)

    def _field(self) -> _Text:
        token = self.expect("word", "header.<name>, key, tag, exists, not or (")
        if token.word == "key":
            return _key
        if token.word == "header" and self._takes_sign("["):
            name = _unquoted(self.expect("text", "the name of a header in quotes"))
            self.expect("sign", "]", "]")
            return _header(name)
        if token.word.startswith(_HEADER) and len(token.text) > len(_HEADER):
            return _header(token.text[len(_HEADER) :])
        raise InvalidFilter(f"expected header.<name> or key, not {token.shown}", token.position)

    def _literal(self) -> str | Number:
        token = self._tokens[self._next]
        if token.kind == "number":
            self._next += 1
            return _read_number(token)
        return _unquoted(self.expect("text", "a number or a text in quotes"))

    def _takes_word(self, word: str) -> bool:
        return self._takes(self._tokens[self._next].word == word)

    def _takes_sign(self, sign: str) -> bool:
        token = self._tokens[self._next]
        return self._takes(token.kind == "sign" and token.text == sign)

    def _takes(self, is_there: bool) -> bool:
        self._next += is_there
        return is_there


def _unquoted(token: _Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _read_number(token: _Token) -> Number:
    number = _as_number(token.text)
    if number is None:
        raise InvalidFilter("the number is too long", token.position)
    return number


def _as_number(text: str) -> Number | None:
    whole, point, fraction = text.removeprefix("-").partition(".")
    if not _are_digits(whole):
        return None
    if not point:
        return int(text)
    return float(text) if _are_digits(fraction) else None


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


# What the closures are made of.


def _any_of(parts: Sequence[Filter]) -> Filter:
    return lambda key, headers: any(part(key, headers) for part in parts)


def _all_of(parts: Sequence[Filter]) -> Filter:
    return lambda key, headers: all(part(key, headers) for part in parts)


def _negated(part: Filter) -> Filter:
    return lambda key, headers: not part(key, headers)


def _key(key: bytes | None, _headers: Headers) -> str | None:
    return None if key is None else key.decode("utf-8", "surrogateescape")


def _header(name: str) -> _Text:
    def value(_key: bytes | None, headers: Headers) -> str | None:
        found = header_of(headers, name)
        return None if found is None else found.decode("utf-8", "surrogateescape")

    return value


def _tested(value: _Text, holds: Callable[[str], bool], *, is_negated: bool) -> Filter:
    def test(key: bytes | None, headers: Headers) -> bool:
        text = value(key, headers)
        return (text is not None and holds(text)) is not is_negated

    return test


def _compared(left: _Text, right: _Text, order: _Order, *, is_negated: bool) -> Filter:
    def holds(key: bytes | None, headers: Headers) -> bool:
        first, second = left(key, headers), right(key, headers)
        if first is None or second is None:
            return is_negated
        numbers = _as_number(first), _as_number(second)
        return order(*((first, second) if None in numbers else numbers)) is not is_negated

    return holds


def _equal_to(literal: str | Number) -> Callable[[str], bool]:
    if isinstance(literal, str):
        return lambda text: text == literal
    return lambda text: _as_number(text) == literal


def _ordered(order: _Order, literal: str | Number) -> Callable[[str], bool]:
    if isinstance(literal, str):
        return lambda text: order(text, literal)

    def holds(text: str) -> bool:
        number = _as_number(text)
        return number is not None and order(number, literal)

    return holds


def _in(literals: Sequence[str | Number]) -> Callable[[str], bool]:
    texts = frozenset(literal for literal in literals if isinstance(literal, str))
    numbers = frozenset(literal for literal in literals if not isinstance(literal, str))
    return lambda text: text in texts or (bool(numbers) and _as_number(text) in numbers)


def _like(pieces: Sequence[Sequence[str]]) -> Callable[[str], bool]:
    """Piece by piece, each at the first place where it fits: one regular expression with many `.*` would try them all.
    The last piece, which must be at the end, is looked for there only."""
    first, *more = [re.compile("".join(piece), re.DOTALL) for piece in pieces]
    if not more:
        return lambda text: first.fullmatch(text) is not None
    *middle, last = more
    last_length = len(pieces[-1])

    def holds(text: str) -> bool:
        match = first.match(text)
        for piece in middle:
            if match is None:
                return False
            match = piece.search(text, match.end())
        if match is None:
            return False
        start = len(text) - last_length
        return start >= match.end() and last.match(text, start) is not None

    return holds


def _pieces(pattern: str) -> list[list[str]]:
    """The parts between the `%`: regular expressions, one per character."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            pieces.append([])
        elif character == "_":
            pieces[-1].append(".")
        else:
            pieces[-1].append(re.escape(next(characters, "\\") if character == "\\" else character))
    return pieces
