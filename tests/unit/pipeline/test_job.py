"""Jobs are found by name, and missing packages are reported in one line."""

from __future__ import annotations

import pytest

from headrace.pipeline import job as jobs
from headrace.pipeline.job import JOBS, NotInstalled, find_job


@pytest.mark.parametrize("name", [name for name in JOBS if name != "fake"])
def test_every_job_can_be_imported(name: str) -> None:
    assert find_job(name).settings_type.__struct_config__.forbid_unknown_fields


def test_without_spark_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow.lib'", name="pyarrow.lib")

    monkeypatch.setattr(jobs, "import_module", missing)
    with pytest.raises(NotInstalled, match=r"pyarrow\.lib is not installed; run `pip install 'headrace\[spark\]'`"):
        find_job("archive")


def test_a_bug_in_a_job_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError("No module named 'headrace.nothing'", name="headrace.nothing")

    monkeypatch.setattr(jobs, "import_module", missing)
    with pytest.raises(ModuleNotFoundError):
        find_job("archive")
