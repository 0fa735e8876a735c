from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.model.errors import InvalidConfig
from headrace.spark.session import _shim, cache_folder, environment, is_local, java_home


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def run(home: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=False, timeout=60)


def an_executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_missing_java_module_is_not_requested(cache: Path) -> None:
    home = java_home()
    assert home.startswith(str(cache))
    ran = run(home, "--add-modules=jdk.incubator.vector", "-Dwith space=a  b", "-XshowSettings:properties", "-version")
    assert ran.returncode == 0, ran.stderr
    assert "with space = a  b" in ran.stderr


def test_an_option_that_java_removed_is_dropped(cache: Path) -> None:
    ran = run(java_home(), "--add-opens=java.base/sun.security.action=ALL-UNNAMED", "-version")
    assert "WARNING" not in ran.stdout + ran.stderr


def test_the_folder_is_created_once(cache: Path) -> None:
    home = Path(java_home())
    made = (home / "bin" / "java").stat().st_ino
    assert Path(java_home()) == home
    assert (home / "bin" / "java").stat().st_ino == made
    assert [path.name for path in home.parent.iterdir()] == [home.name]


def test_another_java_has_another_folder(cache: Path, tmp_path: Path) -> None:
    first, second = (_shim(an_executable(tmp_path / name / "bin" / "java")) for name in ("one", "two"))
    assert first != second


def test_without_a_home_the_temporary_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_folder() == tmp_path / f"headrace-{os.getuid()}"
    cache_folder().chmod(0o777)
    with pytest.raises(InvalidConfig, match="does not belong to this user alone"):
        cache_folder()


def test_without_the_wheel_the_installed_java_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headrace.spark.session"], "find_spec", lambda _name: None)
    there = an_executable(tmp_path / "jdk" / "bin" / "java")
    monkeypatch.setenv("PATH", str(there.parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java_home() == str(tmp_path / "jdk")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java_home() == str(tmp_path / "jdk")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(InvalidConfig, match=r"pip install headrace\[spark\]"):
        java_home()


def test_the_environment_names_java_spark_and_this_python(cache: Path) -> None:
    told = environment()
    assert os.access(f"{told['JAVA_HOME']}/bin/java", os.X_OK)
    assert os.access(f"{told['SPARK_HOME']}/bin/spark-submit", os.X_OK)
    assert told["PYSPARK_PYTHON"] == told["PYSPARK_DRIVER_PYTHON"]


def test_without_spark_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headrace.spark.session"], "find_spec", lambda _name: None)
    with pytest.raises(InvalidConfig, match=r"pip install headrace\[spark\]"):
        environment()


def test_local_masters_are_recognised() -> None:
    assert all(map(is_local, ("local", "local[*]", "local[4]", "local[2, 3]")))
    assert not any(map(is_local, ("spark://host:7077", "local-cluster[2,1,1024]", "yarn")))
