"""The pipelines of a folder are found by their files and their work folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.pipeline.fakes import TOML

from headrace.pipeline.listing import NoSuchPipeline, PipelineNameTaken, find_pipeline, pipelines_in
from headrace.pipeline.runner import plan_pipeline, run_pipeline
from headrace.pipeline.settings import Pipeline, pipeline_of_job, read_pipeline
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


def ran(pipeline: Pipeline) -> Pipeline:
    assert run_pipeline(pipeline).ok
    return pipeline


def test_a_run_without_a_file_does_not_take_the_name_of_a_file(tmp_path: Path, written: Callable[..., Path]) -> None:
    filed = ran(read_pipeline(written(TOML.replace('"orders"', '"fake"', 1), "f.toml")))
    before = WorkFolder(filed.work).status()
    with pytest.raises(PipelineNameTaken, match=r"belongs to the pipeline in .*f\.toml; add --set pipeline\.name=NAME"):
        run_pipeline(pipeline_of_job("fake", ["fake.topics=a"], folder=tmp_path))
    with pytest.raises(PipelineNameTaken):
        plan_pipeline(pipeline_of_job("fake", ["fake.topics=a"], folder=tmp_path))
    assert WorkFolder(filed.work).status() == before
    for _ in range(2):
        ran(pipeline_of_job("fake", ["fake.topics=a", "pipeline.name=adhoc"], folder=tmp_path))
    assert [(one.name, Path(one.file).name) for one in pipelines_in(tmp_path)] == [("adhoc", ""), ("fake", "f.toml")]


def test_a_file_does_not_take_the_name_of_a_run_without_a_file(tmp_path: Path, written: Callable[..., Path]) -> None:
    adhoc = ran(pipeline_of_job("fake", ["fake.topics=a"], folder=tmp_path))
    filed = read_pipeline(written(TOML.replace('"orders"', '"fake"', 1), "f.toml"))
    with pytest.raises(
        PipelineNameTaken, match=r"without a file.*; set another name in \[pipeline\] of .*f\.toml, or "
    ):
        run_pipeline(filed)
    WorkFolder(adhoc.work).status_file.unlink()
    ran(filed)


def test_two_files_do_not_share_a_work_folder(tmp_path: Path, written: Callable[..., Path]) -> None:
    first = read_pipeline(written(TOML))
    ran(first)
    second = read_pipeline(written(TOML, "twin.toml"))
    with pytest.raises(PipelineNameTaken, match=r"belongs to the pipeline in .*orders\.toml"):
        run_pipeline(second)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path(second.file).rename(elsewhere / "orders.toml")
    work = first.work.absolute()
    distant = read_pipeline(elsewhere / "orders.toml", [f"pipeline.work={work}"])
    with pytest.raises(PipelineNameTaken, match=r"belongs to the pipeline in .*orders\.toml"):
        run_pipeline(distant)


def test_a_renamed_file_keeps_its_work_folder(tmp_path: Path, written: Callable[..., Path]) -> None:
    path = written(TOML)
    ran(read_pipeline(path))
    path.rename(tmp_path / "renamed.toml")
    ran(read_pipeline(tmp_path / "renamed.toml"))


def test_an_unreadable_status_does_not_hinder_a_run(written: Callable[..., Path]) -> None:
    pipeline = ran(read_pipeline(written(TOML)))
    WorkFolder(pipeline.work).status_file.write_text("")
    ran(pipeline)
