"""docs/pipelines.md documents every setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct, structs

from headrace.pipeline.settings import PipelineTable, SparkTable
from headrace.pipeline.transform.transform_job import TransformSettings

TEXT = Path(__file__).parents[3].joinpath("docs", "pipelines.md").read_text()


@pytest.mark.parametrize("table", [PipelineTable, SparkTable, TransformSettings])
def test_every_key_is_documented(table: type[Struct]) -> None:
    missing = [field.encode_name for field in structs.fields(table) if f"`{field.encode_name}`" not in TEXT]
    assert missing == []
