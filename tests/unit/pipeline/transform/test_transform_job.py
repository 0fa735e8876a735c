"""Problems of a transform that are found without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.transform.transform_job import TopicSqlView, TransformJob, TransformSettings

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
        (TransformSettings(sql="gone.sql"), "there is no file /gone.sql"),
        (TransformSettings(python="bad.py"), "/bad.py is not Python: "),
        (TransformSettings(python="x.py", to="out"), "to applies to SQL files only"),
        (TransformSettings(python="x.py", sources=SOURCES), "sources applies to SQL files only"),
        (TransformSettings(sql="x.sql", to="out"), "there is no source; add a table [transform.sources.NAME]"),
        (TransformSettings(sql="two.sql", to="out", sources=SOURCES), "/two.sql: line 1: a second SELECT"),
        (TransformSettings(sql="x.sql", to="a/b", sources=SOURCES), "/x.sql: "),
        (
            TransformSettings(sql="x.sql", to="out", sources=SOURCES, options={"delivry": "exactly-once"}),
            "/x.sql: there is no option 'delivry'; did you mean delivery?",
        ),
        (
            TransformSettings(sql="x.sql", to="out", sources={"orders": {"tpic": "orders"}}),
            "sources.orders: ",
        ),
        (
            TransformSettings(sql="x.sql", to="out", sources={"orders": {"topic": "orders", "watermark": "late"}}),
            "sources.orders: 'late' is not a duration",
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
