"""The pipelines of a folder are found by their files and their work folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.pipeline.fakes import TOML

from headrace.pipeline.listing import NoSuchPipeline, find_pipeline, pipelines_in
from headrace.pipeline.state import Process, Status, WorkFolder


def left_behind(folder: Path, name: str) -> None:
    work = WorkFolder(folder / "headrace-pipelines" / name)
    work.path.mkdir(parents=True)
    work.write_status(Status(name, "fake", "continuous", "done", Process.own(), 1, 2))


def test_pipelines_are_listed_by_name_with_or_without_a_file(tmp_path: Path, written: Callable[..., Path]) -> None:
    written(TOML)
    written(TOML.replace('"orders"', '"zebra"', 1) + "wrong = 3", "z.toml")
    written("[project]\nname = 'x'\n", "pyproject.toml")
    written("not toml", "y.toml")
    written(TOML.replace('"fake"', '"unknown"'), "u.toml")
    left_behind(tmp_path, "orders")
    left_behind(tmp_path, "adhoc")
    listed = pipelines_in(tmp_path)
    assert [(one.name, one.mode, Path(one.file).name, one.status is not None) for one in listed] == [
        ("adhoc", "continuous", "", True),
        ("orders", "once", "orders.toml", True),
        ("zebra", "once", "z.toml", False),
    ]


def test_a_work_folder_elsewhere_is_found_through_the_file(tmp_path: Path, written: Callable[..., Path]) -> None:
    path = written(TOML.replace("[fake]", 'work = "elsewhere/w"\n[fake]'))
    assert find_pipeline(str(path), tmp_path).work == tmp_path / "elsewhere/w"


def test_a_pipeline_is_found_by_name_or_file(tmp_path: Path, written: Callable[..., Path]) -> None:
    path = written(TOML)
    assert find_pipeline("orders", tmp_path) == find_pipeline(str(path), tmp_path)
    with pytest.raises(NoSuchPipeline, match=r"no pipeline ordrs here \(did you mean orders\?\)"):
        find_pipeline("ordrs", tmp_path)
    with pytest.raises(NoSuchPipeline, match="is not a pipeline file"):
        find_pipeline(str(written("", "empty.toml")), tmp_path)
    written(TOML, "twin.toml")
    with pytest.raises(NoSuchPipeline, match=r"name of several pipelines: .*orders\.toml, .*twin\.toml"):
        find_pipeline("orders", tmp_path)
