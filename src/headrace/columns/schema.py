"""The columns of a record, with the names, order and types of Kafka's connector for Spark.

The files of the archive and the input of the sink use the same names. The inner field of `headers` is called `element`,
as in Spark and Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from headrace.model.errors import InvalidRequest

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),  # 0: set by the producer, 1: set by the broker on append
        pa.field("headers", HEADERS_TYPE),
    ]
)
COLUMNS: Final[tuple[str, ...]] = tuple(ARROW_SCHEMA.names)
SPARK_DDL: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise InvalidRequest(f"there is no column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    return pa.schema([ARROW_SCHEMA.field(name) for name in columns])
