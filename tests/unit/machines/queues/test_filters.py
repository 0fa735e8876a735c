"""Filters: which messages match, errors of invalid text, and agreement with a naive implementation."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.queues.filters import (
    CONDITIONS_MAX,
    DEPTH_MAX,
    LENGTH_MAX,
    SEARCHES_MAX,
    TAG_SEARCHES,
    WILDCARD_LENGTH_MAX,
    InvalidFilter,
    compile_filter,
)
from headrace.model.message_headers import TAGS, TAGS_MAX

Headers = Sequence[tuple[str, bytes | None]]


def matches(text: str, key: bytes | None = None, **headers: bytes | None) -> bool:
    return compile_filter(text)(key, list(headers.items()))


def tagged(text: str, tags: bytes) -> bool:
    return compile_filter(text)(None, [(TAGS, tags)])


def test_conditions_combine_with_and_or_not() -> None:
    text = "header.type = 'order' and (header.size > 10 or key like 'eu-%') and not tag in ('a','b')"
    wanted = compile_filter(text)
    assert wanted(b"eu-1", [("type", b"order")])
    assert wanted(b"us-1", [("type", b"order"), ("size", b"11")])
    assert not wanted(b"us-1", [("type", b"order"), ("size", b"9")])
    assert not wanted(b"eu-1", [("type", b"order"), (TAGS, b"x, b")])
    assert not wanted(b"eu-1", [])


def test_and_binds_tighter_than_or() -> None:
    assert matches("header.a = '1' or header.a = '2' and header.b = '3'", a=b"1")


def test_keywords_are_case_insensitive_and_header_names_are_not() -> None:
    assert matches("NOT Header.A = 'x' AND Exists(Header.a)", a=b"x")
    assert not matches("header.A = 'x'", a=b"x")


def test_numbers_are_compared_as_numbers() -> None:
    assert matches("header.size > 9", size=b"10")
    assert matches("header.size = 10", size=b"10.0")
    assert matches("header.size >= -1.5", size=b"-1.5")
    assert matches("header.a < header.b", a=b"9", b=b"10")


def test_text_is_compared_as_text() -> None:
    assert matches("header.size > '10'", size=b"9")
    assert not matches("header.size = '10'", size=b"10.0")
    assert matches("header.a < header.b", a=b"10", b=b"9a")


def test_text_never_compares_with_a_number() -> None:
    for sign in ("=", "<", ">", "<=", ">="):
        assert not matches(f"header.size {sign} 10", size=b"much")
    assert matches("header.size != 10", size=b"much")


def test_a_missing_value_equals_nothing() -> None:
    assert not matches("header.x = ''")
    assert matches("header.x != 'a'")
    assert matches("header.x not in ('a')")
    assert matches("key not like '%'")
    assert not matches("header.x < header.y", x=b"1")
    assert not matches("exists(header.x) or exists(key) or exists(tag)", x=None)
    assert matches("exists(key)", b"")


def test_a_header_of_any_name_can_be_tested() -> None:
    assert compile_filter("header['it''s an odd.name'] = 'it''s'")(None, [("it's an odd.name", b"it's")])
    assert compile_filter("header.headrace-dead-reason like '%timeout%'")(
        None, [("headrace-dead-reason", b"a timeout of 3 s")]
    )


def test_each_tag_is_tested() -> None:
    assert tagged("tag = 'b'", b"a,b")
    assert not tagged("tag != 'b'", b"a,b")
    assert tagged("tag like 'be_'", b"a,bee")
    assert tagged("tag in (1, 'x')", b"a,1.0")
    assert not tagged("tag not in ('a')", b"a,b")
    assert tagged("exists(tag) and tag != 'c'", b"a")


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("a%", "abc", True),
        ("%c", "abc", True),
        ("%b%", "abc", True),
        ("a_c", "abc", True),
        ("a_c", "ac", False),
        ("ab%bc", "abc", False),
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("a%a", "a", False),
        (r"100\%", "100%", True),
        (r"100\%", "1000", False),
        ("a.c", "abc", False),
        ("%\n_", "x\n\n", True),
        ("ends\\", "ends\\", True),
    ],
)
def test_a_pattern_matches_the_whole_text(pattern: str, text: str, fits: bool) -> None:
    assert matches(f"key like '{pattern}'", text.encode()) is fits


def test_no_pattern_is_slow() -> None:
    wanted = compile_filter("key like '" + "%a" * SEARCHES_MAX + "%b'")
    assert not wanted(b"a" * 10_000, [])  # trying every position of the pieces would take too long


def test_the_product_of_pattern_and_value_lengths_is_bounded() -> None:
    # This pattern and a key of 1 MB kept the event loop busy for 13 s.
    with pytest.raises(InvalidFilter, match="more than 32 characters in total"):
        compile_filter("key like '%_" + "a" * 4000 + "x%'")
    part = "_" + "a" * (WILDCARD_LENGTH_MAX // 2 - 1)
    compile_filter(f"key like '%{part}%' or tag like '%{part}%'")
    with pytest.raises(InvalidFilter, match="in total"):
        compile_filter(f"key like '%{part}%' or tag like '%{part}%' or header.a like '%_%'")


def test_the_number_of_conditions_is_bounded() -> None:
    compile_filter(" or ".join(["key = 'a'"] * CONDITIONS_MAX))
    with pytest.raises(InvalidFilter, match=f"more than {CONDITIONS_MAX} conditions"):
        compile_filter(" or ".join(["key = 'a'"] * (CONDITIONS_MAX + 1)))


def test_the_number_of_searches_is_bounded() -> None:
    # 200 of these and a key of 1 MB kept the event loop busy for 5 s.
    compile_filter(" or ".join(["key like '%ab%'"] * SEARCHES_MAX))
    compile_filter(" or ".join(["key like 'ab%'"] * CONDITIONS_MAX))
    with pytest.raises(InvalidFilter, match=f"more than {SEARCHES_MAX} parts"):
        compile_filter(" or ".join(["key like '%ab%'"] * (SEARCHES_MAX + 1)))
    with pytest.raises(InvalidFilter, match=f"more than {SEARCHES_MAX} parts"):
        compile_filter(" or ".join(["tag like 'ab%'"] * (SEARCHES_MAX // TAG_SEARCHES + 1)))


class CountedHeaders(list[tuple[str, bytes | None]]):
    """Headers that count how often they are iterated."""

    reads = 0

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        self.reads += 1
        return super().__iter__()

    def __reversed__(self) -> Iterator[tuple[str, bytes | None]]:
        self.reads += 1
        return super().__reversed__()


def test_a_message_is_decoded_once_for_all_conditions() -> None:
    # 340 conditions on tags, and a message with 140,000 tags, kept the event loop busy for 219 s.
    wanted = compile_filter(" or ".join(f"tag = '{n}' or header.h{n} = 'x'" for n in range(CONDITIONS_MAX // 2)))
    headers = CountedHeaders([("h", b"y"), (TAGS, b"a,b")])
    assert not wanted(None, headers)
    assert headers.reads == 2  # for the headers by name, and for the tags


def test_only_the_first_tags_of_a_message_count() -> None:
    tags = {TAGS: ",".join(f"t{number}" for number in range(140_000)).encode()}
    assert matches(f"tag = 't{TAGS_MAX - 1}'", **tags)
    assert not matches(f"tag = 't{TAGS_MAX}'", **tags)


def test_a_long_text_is_not_a_number() -> None:
    assert not matches("header.a > 0", a=b"1" * 100_000)


def test_patterns_with_linear_cost_may_be_long() -> None:
    long = "a" * 1000
    assert matches(f"key like '{long}_%\\_{long}%_{long}'", f"{long}b_{long}_{long}".encode())
    assert not matches(f"key like '%{long}x%'", b"a" * 100_000)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected header.<name>, key, tag, exists, not or \\(, not the end"),
        ("header.a = 'x' or", 17, "not the end"),
        ("header.a", 8, "expected a comparison, like or in"),
        ("header.a = ", 11, "a number or a text in quotes"),
        ("header.a = 'x", 11, "has no closing '"),
        ("(header.a = 'x'", 15, "expected \\), not the end"),
        ("header.a = 'x')", 14, "expected and, or, or the end, not \\)"),
        ("colour = 'x'", 0, "expected header.<name> or key, not colour"),
        ("header. = 'x'", 0, "expected header.<name> or key, not header\\."),
        ("header.a ~ 'x'", 9, "'~' is not valid here"),
        ("header.a like 3", 14, "a pattern in quotes"),
        ("header.a in ()", 13, "a number or a text in quotes"),
        ("header.a in ('x' 'y')", 17, "expected , or \\)"),
        ("tag < 'a'", 4, "cannot be compared by order"),
        ("header.a = 1x", 11, "is not valid here"),
        ("header.a = " + "1" * 41, 11, "too long"),
        ("not " * (DEPTH_MAX + 2) + "key = 'x'", 4 * (DEPTH_MAX + 1), "nested deeper than"),
        ("(" * (DEPTH_MAX + 2), DEPTH_MAX + 1, "nested deeper than"),
        ("k" * (LENGTH_MAX + 1), LENGTH_MAX, "longer than 4096"),
    ],
)
def test_invalid_text_is_rejected_with_its_position(text: str, position: int, problem: str) -> None:
    with pytest.raises(InvalidFilter, match=problem) as rejected:
        compile_filter(text)
    assert rejected.value.position == position
    assert f"at character {position + 1}:" in rejected.value.message


@given(st.text(alphabet="headr.key '()[]<>=!,not like in and or 1.5tag\\%_", max_size=60))
def test_any_text_compiles_or_is_rejected(text: str) -> None:
    with suppress(InvalidFilter):
        compile_filter(text)(b"key", [("a", b"\xff")])


# A naive reading: trees are written down as text, and judged as they are.

NAMES = ["a", "b", "size"]
SOME_TEXT = st.sampled_from(["", "a", "ab", "b", "10", "9", "1.5", "it's", "a%", "x_y", "\\"])
SOME_NUMBER = st.sampled_from([-1, 0, 9, 10, 1.5])
FIELD = st.sampled_from([*(f"header.{name}" for name in NAMES), "key"])
LITERAL = SOME_TEXT | SOME_NUMBER
SIGN = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])
LEAF = (
    st.tuples(st.just("compare"), FIELD, SIGN, LITERAL)
    | st.tuples(st.just("fields"), FIELD, SIGN, FIELD)
    | st.tuples(st.just("like"), FIELD, st.booleans(), st.sampled_from(["%", "a%", "%b", "_", "a_", "1%", "%a%b%"]))
    | st.tuples(st.just("in"), FIELD, st.booleans(), st.lists(LITERAL, min_size=1, max_size=3))
    | st.tuples(st.just("tag"), st.booleans(), st.lists(SOME_TEXT, min_size=1, max_size=3))
    | st.tuples(st.just("exists"), FIELD)
)
TREE: st.SearchStrategy[tuple[object, ...]] = st.recursive(
    LEAF,
    lambda inner: (
        st.tuples(st.just("not"), inner)
        | st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=3))
        | st.tuples(st.just("or"), st.lists(inner, min_size=2, max_size=3))
    ),
    max_leaves=6,
)
BYTES = SOME_TEXT.map(str.encode) | st.none()
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), BYTES) | st.tuples(st.just(TAGS), BYTES), max_size=5)


def quoted(literal: object) -> str:
    return str(literal) if not isinstance(literal, str) else "'" + literal.replace("'", "''") + "'"


def written(tree: tuple[object, ...]) -> str:
    match tree:
        case ("compare", field, sign, literal):
            return f"{field} {sign} {quoted(literal)}"
        case ("fields", field, sign, other):
            return f"{field}{sign}{other}"
        case ("like", field, is_negated, pattern):
            return f"{field} {'not ' * bool(is_negated)}like {quoted(pattern)}"
        case ("in", field, is_negated, list(literals)):
            return f"{field} {'NOT ' * bool(is_negated)}in ({', '.join(quoted(literal) for literal in literals)})"
        case ("tag", is_negated, list(literals)):
            return f"tag {'not ' * bool(is_negated)}in({','.join(quoted(literal) for literal in literals)})"
        case ("exists", field):
            return f"exists({field})"
        case ("not", tuple(inner)):
            return f"not ({written(inner)})"
        case (str(word), list(parts)):
            return "(" + f" {word} ".join(written(part) for part in parts) + ")"
    raise AssertionError(tree)


def naive_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def naive_order(sign: str, first: object, second: object) -> bool:
    if sign in ("!=", "<>"):
        return not naive_order("=", first, second)
    if first is None or second is None:
        return False
    python = "==" if sign == "=" else sign
    return bool(eval(f"first {python} second"))


def naive_compare(sign: str, text: str | None, literal: object) -> bool:
    if isinstance(literal, str) or text is None:
        return naive_order(sign, text, literal)
    return naive_order(sign, naive_number(text), literal)


def judged(tree: tuple[object, ...], key: bytes | None, headers: Headers) -> bool:
    values = {f"header.{name}": value.decode() if value is not None else None for name, value in headers}
    values["key"] = None if key is None else key.decode()
    match tree:
        case ("compare", str(field), str(sign), literal):
            return naive_compare(sign, values.get(field), literal)
        case ("fields", str(field), str(sign), str(other)):
            first, second = values.get(field), values.get(other)
            if first is None or second is None:
                return naive_order(sign, None, None)
            numbers = naive_number(first), naive_number(second)
            return naive_order(sign, *((first, second) if None in numbers else numbers))
        case ("like", str(field), is_negated, str(pattern)):
            text = values.get(field)
            shell = pattern.replace("%", "*").replace("_", "?")
            return (text is not None and fnmatch.fnmatchcase(text, shell)) != is_negated
        case ("in", str(field), is_negated, list(literals)):
            return any(naive_compare("=", values.get(field), literal) for literal in literals) != is_negated
        case ("tag", is_negated, list(literals)):
            tags = [tag.strip() for tag in (values.get(f"header.{TAGS}") or "").split(",") if tag.strip()]
            return any(tag in literals for tag in tags) != is_negated
        case ("exists", str(field)):
            return values.get(field) is not None
        case ("not", tuple(inner)):
            return not judged(inner, key, headers)
        case ("and", list(parts)):
            return all(judged(part, key, headers) for part in parts)
        case ("or", list(parts)):
            return any(judged(part, key, headers) for part in parts)
    raise AssertionError(tree)


@given(TREE, BYTES, HEADERS)
def test_a_filter_agrees_with_a_naive_implementation(
    tree: tuple[object, ...], key: bytes | None, headers: Headers
) -> None:
    assert compile_filter(written(tree))(key, headers) == judged(tree, key, headers)
