"""Problems of a transform that are found without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.transform.transform_job import TopicSqlView, TransformJob, TransformSettings, Value

SOURCES: dict[str, dict[str, str | bool | int | float]] = {"orders": {"topic": "orders"}}


def problems_of(folder: Path, settings: TransformSettings) -> list[str]:
    return [problem.replace(str(folder), "") for problem in TransformJob(settings, folder).problems()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x.sql").write_text("SELECT value FROM orders")
    (tmp_path / "two.sql").write_text("SELECT value FROM orders; SELECT 2")
    (tmp_path / "x.py").write_text("x = 3\n")
    (tmp_path / "bad.py").write_text("x = = 3\n")
    return tmp_path


def test_valid_settings_have_no_problems(folder: Path) -> None:
    assert problems_of(folder, TransformSettings(sql="x.sql", to="out", sources=SOURCES)) == []
    assert problems_of(folder, TransformSettings(sql="x.sql", sources=SOURCES)) == []  # by its column topic
    assert problems_of(folder, TransformSettings(python="x.py")) == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (TransformSettings(), "set either sql, "),
        (TransformSettings(sql="x.sql", python="x.py"), "set either sql, "),
        (TransformSettings(sql="gone.sql", sources=SOURCES), "there is no file /gone.sql"),
        (TransformSettings(python="bad.py"), "/bad.py is not Python: "),
        (TransformSettings(python="x.py", to="out"), "to applies to SQL files only"),
        (TransformSettings(python="x.py", sources=SOURCES), "sources applies to SQL files only"),
        (TransformSettings(sql="x.sql", to="out"), "there is no source; add a table [transform.sources.NAME]"),
        (TransformSettings(sql="two.sql", to="out", sources=SOURCES), "/two.sql: line 1: a second SELECT"),
        (TransformSettings(sql="x.sql", to="a/b", sources=SOURCES), "to: Topic name is invalid"),
        (
            TransformSettings(sql="x.sql", to="out", sources=SOURCES, options={"delivry": "exactly-once"}),
            "options: there is no option 'delivry'; did you mean delivery?",
        ),
        (
            TransformSettings(sql="x.sql", to="out", sources={"orders": {"topic": "orders", "tpic": "x"}}),
            "sources.orders: ",
        ),
        (
            TransformSettings(sql="x.sql", to="out", sources={"orders": {"topic": "orders", "watermark": "late"}}),
            "sources.orders.watermark: 'late' is not a duration",
        ),
        (
            TransformSettings(
                sql="x.sql", to="out", sources={"orders": {"topic": "orders", "endingOffsets": "latest"}}
            ),
            "sources.orders: endingOffsets has no meaning in a streaming query",
        ),
    ],
)
def test_invalid_settings_are_reported(folder: Path, settings: TransformSettings, problem: str) -> None:
    (found,) = problems_of(folder, settings)
    assert found.startswith(problem)


def test_a_source_starts_at_the_beginning_by_default() -> None:
    source = TopicSqlView.of(
        "orders", {"topic": "orders", "watermark": "1m", "maxOffsetsPerTrigger": 5, "includeHeaders": False}
    )
    assert source.options == {
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "5",
        "includeHeaders": "false",
    }
    assert (source.watermark_ms, source.watermark_column) == (60_000, "timestamp")
    later = TopicSqlView.of(
        "orders", {"topic": "orders", "startingTimestamp": 5, "watermark": "1m", "watermarkColumn": "at"}
    )
    assert "startingOffsets" not in later.options
    assert later.watermark_column == "at"


def test_all_problems_are_reported_at_once(folder: Path) -> None:
    (folder / "many.sql").write_text("DROP TABLE x; INSERT INTO `a/b` SELECT value FROM orders; SELECT 1; SELECT 2")
    source: dict[str, Value] = {
        "topic": "orders",
        "watermark": "late",
        "onBadValue": "x",
        "valueFormat": "json",
        "valueSchema": "id NO",
    }
    settings = TransformSettings(sql="many.sql", to="c/d", sources={"orders": source}, options={"delivry": "x"})
    found = problems_of(folder, settings)
    assert [problem.partition(" ")[0] for problem in found] == [
        "sources.orders.watermark:",
        "sources.orders:",
        "sources.orders:",
        "options:",
        "to:",
        "/many.sql:",
        "/many.sql:",
        "/many.sql:",
    ]
    assert "sources.orders: valueSchema is not a list of columns" in found[1]
    gone = TransformSettings(sql="gone.sql", sources={"orders": source}, options={"delivry": "x"})
    assert len(problems_of(folder, gone)) == 5
