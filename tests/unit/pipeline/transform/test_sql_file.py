"""A SQL file is split into statements, and unsupported ones are rejected with their line."""

from __future__ import annotations

import pytest

from headrace.pipeline.transform.sql_file import InvalidSql, Statement, output_names, parse_sql


def test_statements_are_split_outside_of_quotes_and_comments() -> None:
    text = """-- first; not a statement
CREATE OR REPLACE TEMP VIEW `a b` AS SELECT ';' AS x, "it''s;" AS y, `;` FROM t /* ; */ ;

insert into `orders.big` select * from t;
INSERT INTO TABLE out-2
WITH x AS (SELECT 1) SELECT '--' FROM x;
SELECT 'it\\'s; fine' FROM t -- the end;
"""
    assert parse_sql(text) == [
        Statement(
            "view",
            "a b",
            "CREATE OR REPLACE TEMP VIEW `a b` AS SELECT ';' AS x, \"it''s;\" AS y, `;` FROM t",
            2,
        ),
        Statement("insert", "orders.big", "select * from t", 4),
        Statement("insert", "out-2", "WITH x AS (SELECT 1) SELECT '--' FROM x", 5),
        Statement("query", "", "SELECT 'it\\'s; fine' FROM t", 7),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file writes nothing"),
        ("-- nothing", "the file writes nothing"),
        ("CREATE TEMPORARY VIEW v AS SELECT 1", "the file writes nothing"),
        ("SELECT 1;\n\nSELECT 2", "line 3: a second SELECT has no target"),
        ("SELECT 1;\nDROP TABLE x now", "line 2: 'DROP TABLE x' is not supported"),
        ("CREATE TABLE x AS SELECT 1", "line 1: 'CREATE TABLE x' is not supported"),
    ],
)
def test_unsupported_statements_are_rejected(text: str, why: str) -> None:
    with pytest.raises(InvalidSql, match=why):
        parse_sql(text)


def test_unclosed_quotes_are_left_to_spark() -> None:
    assert parse_sql("SELECT 'a; b")[0].sql == "SELECT 'a; b"
    assert parse_sql("SELECT 1 /* a; b")[0].sql == "SELECT 1"


def test_each_output_has_a_unique_name() -> None:
    statements = parse_sql("INSERT INTO a SELECT 1; INSERT INTO b SELECT 2; INSERT INTO a SELECT 3; SELECT 4")
    assert [(name, one.sql[-1]) for name, one in output_names(statements, "a")] == [
        ("a", "1"),
        ("b", "2"),
        ("a-2", "3"),
        ("a-3", "4"),
    ]
