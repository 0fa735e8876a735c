"""The habits of this repository, checked: so that the map cannot rot and nothing grows unseen."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"
MODULES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60

# Both are written so that they do not match themselves.
UNFINISHED = re.compile(r"\b([T]ODO|[F]IXME|[X]XX)\b")
REGISTRY_HOSTS = re.compile(
    r"pypi\.org|pythonhosted\.org|maven\.org|maven\.apache\.org|proxy\.golang\.org|[a]rtifactory|[n]exus\."
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked_files() -> Iterator[Path]:
    """What is or would be committed: tracked files, and new ones that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return (ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file())


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    text = text_of(path)
    lines = text.count("\n")
    assert lines <= FILE_LINES_MAX, f"{lines} lines; split it by its nouns"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the module docstring is missing"
    too_long = [
        f"{node.name} has {length} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not too_long


def test_modules_are_named_after_what_they_hold() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    assert not [name_of(path) for path in MODULES if {path.stem, path.parent.name} & vague]


# `headrace.Reject` is the exception that a handler raises; the state machine's settlement has the same name on purpose.
RECURRING_CLASSES = {"Reject"}


def test_no_two_classes_have_the_same_name() -> None:
    paths: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(text_of(path)).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                paths.setdefault(node.name, []).append(name_of(path))
    recurring = {name: where for name, where in paths.items() if len(where) > 1}
    assert not {name: where for name, where in recurring.items() if name not in RECURRING_CLASSES}
    assert not RECURRING_CLASSES - recurring.keys(), "remove unique names from the list"


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{name_of(path)}:{number}"
        for path in tracked_files()
        if path.suffix in {".py", ".md", ".toml", ".in"} or path.name == "Makefile"
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found


def test_no_registry_is_named_in_any_file() -> None:
    # Where packages come from is the machine's configuration, not the repository's.
    found = [name_of(path) for path in tracked_files() if REGISTRY_HOSTS.search(text_of(path))]
    assert not found


def test_every_requirement_is_pinned_and_hashed() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        lines = text_of(path).replace("\\\n", " ").splitlines()
        for requirement in (line for line in lines if line and not line.startswith("#")):
            assert re.match(r"[\w.-]+==\S+.* --hash=sha256:[0-9a-f]{64}", requirement), f"{path}: {requirement}"


def test_the_pinned_requirements_are_those_of_the_package() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    declared = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    pinned = {line for line in text_of(ROOT / "requirements" / "run.in").splitlines() if not line.startswith("#")}
    assert pinned == declared | {"setuptools"}


def test_the_map_names_every_package() -> None:
    text = text_of(ROOT / "docs" / "architecture.md")
    missing = [package.name for package in PACKAGES if f"{package.name}/" not in text]
    assert not missing


def test_the_first_page_names_the_two_commands() -> None:
    text = text_of(ROOT / "README.md")
    assert "make run" in text
    assert "make test" in text


def test_the_makefile_explains_every_target() -> None:
    text = text_of(ROOT / "Makefile")
    targets = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert targets is not None
    explained = set(re.findall(r"^#   make (\w+)", text, re.MULTILINE))
    assert set(targets[1].split()) - {"static"} == explained
