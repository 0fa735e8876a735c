"""The schema of JSON values is checked, and its errors name the option."""

from __future__ import annotations

import pytest

from headrace.model.errors import InvalidConfig
from headrace.spark.json_schema import check_json_schema


@pytest.mark.parametrize(
    "schema",
    [
        "id LONG",
        "id LONG, day DATE",
        "id: BIGINT NOT NULL COMMENT 'the order, as text', amount decimal(10, 2)",
        "items ARRAY<STRUCT<name: STRING, tags: ARRAY<STRING>>>, `odd ``name``` INT",
        "a CHAR(3), b VARCHAR(10), c DECIMAL, d TIMESTAMP_NTZ, e TIMESTAMP WITHOUT TIME ZONE",
        "f STRING COLLATE UTF8_LCASE, `größe` INT, a TIMESTAMP WITH LOCAL TIME ZONE",
        "id LONG -- the order\n, /* no more */ amount DOUBLE",
        "g INTERVAL DAY TO SECOND,\n date DATE, timestamp TIMESTAMP",
    ],
)
def test_schemas_of_spark_are_accepted(schema: str) -> None:
    check_json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("id", "the type of the column id is missing at the end"),
        ("id NUMBR", "the type of the column id is NUMBR, which is no type (did you mean NUMERIC?)"),
        ("id LONG amount DOUBLE", "there is 'amount' where a comma or the end was expected"),
        ("id LONG,", "the name of a column is missing at the end"),
        ("id LONG,, day DATE", "the name of a column is missing before ','"),
        ("order-id LONG", "the type of the column order is missing before '-'"),
        ("tags ARRAY", "'<' is missing after ARRAY"),
        ("tags ARRAY<ARRAY<TXT>>", "the type of the column tags, of its items is TXT, which is no type"),
        ("tags ARRAY<STRING", "'>' is missing after the content of ARRAY"),
        ("a STRUCT<b: STRING", "'>' is missing after the content of STRUCT"),
        ("a DECIMAL(50, 2)", "DECIMAL takes at most 38 digits"),
        ("a INT(3)", "the type INT takes no numbers, not 1"),
        ("a VARCHAR", "'(' is missing after VARCHAR"),
        ("a DECIMAL(x)", "'x' in DECIMAL(...) is not a number"),
        ("a LONG NOT", "'null' is missing after NOT"),
        ("a MAP<STRING, INT>", "the type of the column a is MAP, and JSON has no such type"),
        ("größe INT", "größe must be in backticks: `größe`"),
        ("a TIMESTAMP WITH TIME ZONE", "'local' is missing after WITH"),
        ('{"type": "record"}', "the name of a column is missing before '{'"),
    ],
)
def test_an_error_names_the_option_and_the_place(schema: str, why: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_json_schema(schema)
    assert caught.value.message.startswith("valueSchema is not a list of columns such as `id BIGINT, name STRING`: ")
    assert why in caught.value.message
