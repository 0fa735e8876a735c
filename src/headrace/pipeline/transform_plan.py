"""What a transform would do, in lines: each output with its columns, where it is read from and where it goes.

Spark has analysed the queries by then, so that what is wrong with them was told already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.columns.offsets import bounds, topics_matching
from headrace.pipeline.transform_queries import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def planned(brokers: str, outputs: Sequence[Output], checkpoints: str) -> list[str]:
    there = topics_matching(brokers, ".*")
    return [line for output in outputs for line in _lines(brokers, output, checkpoints, there)]


def _lines(brokers: str, output: Output, checkpoints: str, there: Sequence[str]) -> Iterator[str]:
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in output.frame.schema.fields)
    target = output.options.get("topic") or output.options.get("path") or "the topics of column topic"
    yield f"{output.name}: writes {columns} to {output.format} {target}"
    for topic in topics_read(output.frame):
        if topic not in there:
            yield f"{output.name}: reads {topic}, which is missing; `headrace topic create {topic}` makes it"
            continue
        found = bounds(brokers, [topic])
        records = sum(bound.latest - bound.earliest for bound in found.values())
        yield f"{output.name}: reads {topic}, {len(found)} partitions, {records:,} records"
    target_topic = output.options.get("topic")
    if target_topic is not None and target_topic not in there:
        yield f"{output.name}: {target_topic} is missing; `headrace topic create {target_topic}` makes it"
    yield f"{output.name}: {_standing(checkpoints, output.name)}"


def topics_read(frame: DataFrame) -> list[str]:
    """The topics that its sources name; those of a pattern are not known before the query runs."""
    # The leaves of a plan and their options are not among what PySpark shows of it.
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    topics: dict[str, None] = {}
    for leaf in (leaves.apply(number) for number in range(leaves.size())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            named = leaf.extraOptions().get("subscribe") or ""
            topics |= dict.fromkeys(topic.strip() for topic in named.split(",") if topic.strip())
    return list(topics)


def _standing(checkpoints: str, name: str) -> str:
    if "://" in checkpoints:
        return f"goes on as {checkpoints}/{name} says"
    commits = Path(checkpoints, name, "commits")
    batches = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
    return f"goes on after batch {max(batches)}" if batches else "begins as its sources say: it has no checkpoint yet"
