"""Finding the application of a worker, and the settings of its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.errors import InvalidConfig
from headrace.server.worker import WorkerSettings, load_app


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_application_is_found_in_the_working_directory(in_folder: Path) -> None:
    (in_folder / "found_tasks.py").write_text(
        "from headrace.worker import App\napp = App('billing')\n\n\n@app.subscriber('orders')\ndef bill(o: int): ...\n"
    )
    assert load_app("found_tasks:app").name == "billing"


def test_an_import_that_fails_inside_the_module_is_shown_as_it_is(in_folder: Path) -> None:
    (in_folder / "broken_tasks.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        load_app("broken_tasks:app")


def test_health_pages_stay_on_loopback_unless_insecure() -> None:
    settings = WorkerSettings(
        application="tasks:app",
        server="127.0.0.1:9092",
        concurrency=1,
        processes=1,
        grace_seconds=1.0,
        health=("0.0.0.0", 8090),
        insecure=False,
        log_level="info",
        log_format="text",
    )
    with pytest.raises(InvalidConfig, match="reachable from other hosts"):
        settings.check()
