"""What a transform makes, as the sink takes it: a value and a key of bytes or text, and the sink's own columns.

    there is a column `value`      structs, maps and arrays become JSON, numbers and the like text; other columns that
                                   the sink does not know are left out by it
    there is none                  all columns but the sink's own become one JSON object

The sink's own are key, headers, partition, delay, deliverAt and priority; topic where none is set for all rows, and
timestamp where the sink is told to keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

OWN_COLUMNS: Final = ("key", "headers", "partition", "delay", "deliverat", "priority")


class NoRows(HeadraceError):
    """Nothing is left to write."""


def as_records(frame: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """`options` are the sink's."""
    from pyspark.sql import functions

    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    named = {name.lower(): name for name in kinds}
    chosen = {name.lower() for name in options}
    own = [*OWN_COLUMNS]
    own += [] if "topic" in chosen else ["topic"]
    own += ["timestamp"] if "keeptimestamp" in chosen else []
    rest = [name for name in kinds if name.lower() not in own]
    columns: list[Column] = [frame[named[name]] for name in own if name in named and name != "key"]
    if "key" in named:
        columns.append(_text(frame[named["key"]], kinds[named["key"]]).alias("key"))
    if "value" in named:
        value = _text(frame[named["value"]], kinds[named["value"]])
    elif rest:
        value = functions.to_json(functions.struct(*(frame[f"`{name}`"] for name in rest)))
    else:
        raise NoRows(f"there is nothing to write: no column value, and none but {', '.join(kinds)}")
    return frame.select(value.alias("value"), *columns)


def _text(column: Column, kind: str) -> Column:
    from pyspark.sql import functions

    if kind in ("string", "binary"):
        return column
    return functions.to_json(column) if kind.startswith(("struct", "map", "array")) else column.cast("string")
