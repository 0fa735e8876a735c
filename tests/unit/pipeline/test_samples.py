"""The files that `init` writes are valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headrace.pipeline.job import JOBS
from headrace.pipeline.runner import make_job
from headrace.pipeline.samples import TABLES, CannotWriteSample, write_sample
from headrace.pipeline.settings import read_pipeline

NAMES = [name for name in JOBS if name != "fake"]


@pytest.mark.parametrize("job", NAMES)
def test_every_sample_passes_lint(job: str, tmp_path: Path) -> None:
    path = tmp_path / "my orders.toml"
    assert write_sample(job, path)[0] == str(path)
    pipeline = read_pipeline(path)
    assert (pipeline.name, pipeline.job) == ("my-orders", job)
    make_job(pipeline)


@pytest.mark.parametrize("job", NAMES)
def test_every_commented_setting_of_a_sample_is_valid(job: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    write_sample(job, path)
    text = re.sub(r"^# (?=[\[\w.\]]+( =|\]))", "", path.read_text(), flags=re.MULTILINE)
    assert len(tomllib.loads(text)["pipeline"]) == 6
    path.write_text(text)
    make_job(read_pipeline(path))


def test_there_is_a_sample_for_every_job() -> None:
    assert sorted(TABLES) == sorted(NAMES)


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    (tmp_path / "x.sql").write_text("mine")
    with pytest.raises(CannotWriteSample, match=r"x\.sql exists already"):
        write_sample("transform", path)
    assert not path.exists()
    with pytest.raises(CannotWriteSample, match=r"no job 'transfrm' \(did you mean transform\?\)"):
        write_sample("transfrm", path)
