"""Parse the SQL file of a transform: views over topics and other views, and queries whose rows are written.

    CREATE TEMPORARY VIEW big AS SELECT ... FROM orders;      any number; orders is declared in [transform.sources]
    INSERT INTO big-orders SELECT ... FROM big;               any number; the name is that of a topic
    SELECT ... FROM big                                       at most one, for the topic of [transform] to

Other statements are rejected: Spark would execute them once per start and not once per record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from headrace.model.errors import HeadraceError

Kind = Literal["view", "insert", "query"]

_TOKEN = re.compile(r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|`[^`]*`?|;|.""", re.DOTALL)
_VIEW = re.compile(r"CREATE\s+(?:OR\s+REPLACE\s+)?TEMP(?:ORARY)?\s+VIEW\s+(`[^`]+`|\w+)\s", re.IGNORECASE)
_INSERT = re.compile(r"INSERT\s+INTO\s+(?:TABLE\s+)?(`[^`]+`|[\w.-]+)\s+(.*)", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"(SELECT|WITH|FROM|VALUES|\()", re.IGNORECASE)


class InvalidSql(HeadraceError):
    """A SQL file contains a statement that a transform cannot run."""


class Statement(msgspec.Struct, frozen=True):
    """`target`: the topic of an INSERT or the name of a view; empty for a query. `sql`: the part that Spark runs."""

    kind: Kind
    target: str
    sql: str
    line: int


def parse_sql(text: str) -> list[Statement]:
    """Raises InvalidSql, which names all problems."""
    statements, problems = check_sql(text)
    if problems:
        raise InvalidSql("; ".join(problems))
    return statements


def check_sql(text: str) -> tuple[list[Statement], list[str]]:
    """The supported statements, and the problems of the file."""
    statements: list[Statement] = []
    problems: list[str] = []
    for sql, line in _split(text):
        statement = _statement(sql, line)
        if statement is not None:
            statements.append(statement)
        else:
            words = " ".join(sql.split()[:3])
            problems.append(
                f"line {line}: {words!r} is not supported; use CREATE TEMPORARY VIEW, INSERT INTO and SELECT"
            )
    if not problems and not any(statement.kind != "view" for statement in statements):
        problems.append("the file writes nothing; end it with a SELECT, or add INSERT INTO a topic")
    queries = [statement for statement in statements if statement.kind == "query"]
    problems += [
        f"line {query.line}: a second SELECT has no target; use INSERT INTO a topic, "
        "or make the first a CREATE TEMPORARY VIEW"
        for query in queries[1:]
    ]
    return statements, problems


def output_names(statements: Sequence[Statement], to: str) -> Iterator[tuple[str, Statement]]:
    """A name for each writing statement. It is the same in every run while the statements before it stay the same."""
    count: dict[str, int] = {}
    for statement in statements:
        if statement.kind != "view":
            topic = statement.target or to
            count[topic] = count.get(topic, 0) + 1
            yield topic if count[topic] == 1 else f"{topic}-{count[topic]}", statement


def _statement(sql: str, line: int) -> Statement | None:
    view = _VIEW.match(sql)
    if view is not None:
        return Statement("view", view[1].strip("`"), sql, line)
    insert = _INSERT.match(sql)
    if insert is not None:
        return Statement("insert", insert[1].strip("`"), insert[2], line)
    if _QUERY.match(sql) is not None:
        return Statement("query", "", sql, line)
    return None


def _split(text: str) -> Iterator[tuple[str, int]]:
    """The statements without comments, each with the line on which it begins."""
    sql, line, begins = "", 1, 1
    for token in (match[0] for match in _TOKEN.finditer(text)):
        if token == ";":
            if sql.strip():
                yield sql.strip(), begins
            sql = ""
        elif token.startswith(("--", "/*")):
            sql += " "
        else:
            if not sql.strip():
                begins = line
            sql += token
        line += token.count("\n")
    if sql.strip():
        yield sql.strip(), begins
