"""The links of the documentation resolve, and every page says which kind of page it is and is in the index."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.glob("*.md"), *DOCS.glob("decisions/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")],
)
INDEXED = sorted(path for path in DOCS.glob("*.md") if path.name != "README.md")
KIND = re.compile(r"\*(Tutorial|How-to guide|Reference|Explanation)\*")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"`[^`]*`")
NAMED_PAGE = re.compile(r"docs/[\w/.-]+\.md")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links_of(page: Path) -> list[str]:
    text = CODE_SPAN.sub("", FENCE.sub("", page.read_text()))
    return [link for link in LINK.findall(text) if "://" not in link and not link.startswith("mailto:")]


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or bool(anchor and anchor not in anchors_of(target))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_of_a_page_resolves(page: Path) -> None:
    assert [link for link in links_of(page) if broken(page, link)] == []


def test_a_link_to_a_missing_page_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` heading\n[1](#a-b-heading) [2](#other) [3](gone.md) [4](page.md#other)\n")
    assert [link for link in links_of(page) if broken(page, link)] == ["#other", "gone.md", "page.md#other"]


def test_every_page_that_a_source_file_names_exists() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src", "tests", "bench", "demo", "deploy", "examples", "Makefile", "pyproject.toml"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    sources = [ROOT / name for name in listed if name.endswith((".py", ".toml", ".yml", ".c", ".h", "Makefile"))]
    missing = {
        f"{name_of(path)}: {page}"
        for path in sources
        if path.exists()
        for page in NAMED_PAGE.findall(path.read_text())
        if not (ROOT / page).is_file()
    }
    assert missing == set()


@pytest.mark.parametrize("page", INDEXED, ids=name_of)
def test_a_page_begins_with_its_kind(page: Path) -> None:
    title, blank, first = page.read_text().split("\n")[:3]
    assert title.startswith("# ")
    assert blank == ""
    assert KIND.match(first)


@pytest.mark.parametrize("page", INDEXED, ids=name_of)
def test_the_index_lists_a_page_under_its_kind(page: Path) -> None:
    kind = KIND.findall(page.read_text())[0]
    headings = {"Tutorial": "Tutorials", "How-to guide": "How-to guides"}
    section = (DOCS / "README.md").read_text().split(f"\n### {headings.get(kind, kind)}\n")[1].split("\n#")[0]
    assert f"]({page.name})" in section
