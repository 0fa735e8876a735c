"""Apply a list of module moves to the whole repository.

    python tools/rename/apply.py tools/rename/broker.txt

A list has one move in each line, `OLD NEW`, as paths below `src/headrace` or, with the prefix `tests/`, below the
repository. A line `package PATH "docstring"` creates a package; `merge NEW "docstring" OLD...` puts several modules into
one, in this order. The unit test of a moved module (`test_<module>.py`) moves with it. Everything that names a moved module follows: imports, dotted names, and paths in documentation,
docstrings and configuration. Running a list twice changes nothing, so it can be applied again after a merge.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("src/headrace")
TEXT = {".py", ".pyi", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".in", ""}
_SKIPPED = ("tools/rename/", "CHANGELOG.md", "bench/results/", "docs/chaos/")


class Move(NamedTuple):
    old: Path
    new: Path


def main(lists: list[str]) -> int:
    moves: list[Move] = []
    for name in lists:
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "package":
                _create_package(ROOT / SOURCE / words[1], words[2])
            elif words and words[0] == "merge":
                _merge(SOURCE / words[1], words[2], [SOURCE / source for source in words[3:]])
                moves += [Move(SOURCE / source, SOURCE / words[1]) for source in words[3:] if source != words[1]]
            elif words:
                moves += _moves_of(*words)
    for move in moves:
        _carry_out(move)
    references = _references(moves)
    for path in _text_files():
        text = path.read_text(encoding="utf-8")
        changed = _rewritten(text, moves, references)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    return 0


def _moves_of(old: str, new: str) -> list[Move]:
    if old.startswith("tests/"):
        return [Move(Path(old), Path(new))]
    source, target = Path(old), Path(new)
    test, moved_test = (Path("tests/unit") / path.with_name(f"test_{path.name}") for path in (source, target))
    return [Move(SOURCE / source, SOURCE / target), Move(test, moved_test)]


def _create_package(folder: Path, docstring: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    init = folder / "__init__.py"
    if not init.exists():
        init.write_text(f'"""{docstring}"""\n', encoding="utf-8")
        _git("add", str(init))


def _merge(target: Path, docstring: str, sources: list[Path]) -> None:
    """What a source said in its docstring becomes a comment above its classes."""
    if not all((ROOT / source).exists() for source in sources):
        return
    modules = {_dotted(source): source for source in sources}
    imports: list[str] = []
    sections: list[str] = []
    taken: dict[str, tuple[Path, str]] = {}
    for source in _in_order(modules):
        text = (ROOT / source).read_text(encoding="utf-8")
        tree = ast.parse(text)
        repeated: list[ast.stmt] = []
        for name, node in _names_of(tree):
            said = ast.unparse(node)
            if name not in taken:
                taken[name] = source, said
            elif taken[name][1] == said:
                repeated.append(node)
            else:
                sys.exit(f"{name} is in {taken[name][0]} and in {source}: rename one of them first")
        found, body = _split(text, tree, set(modules), repeated)
        imports += found
        comment = "\n".join(f"# {line}".rstrip() for line in (ast.get_docstring(tree) or "").splitlines())
        sections.append(f"{comment}\n\n\n{body}")
    head = f'"""{docstring}"""\n\nfrom __future__ import annotations\n\n'
    for source in sources:
        _git("rm", "-q", "--cached", str(source))
        (ROOT / source).unlink()
    (ROOT / target).write_text(head + "\n".join(imports) + "\n\n\n" + "\n\n\n".join(sections), encoding="utf-8")
    _git("add", str(target))


def _in_order(modules: dict[str, Path]) -> list[Path]:
    """As listed, but for a module that imports another one of them: it comes behind that one."""
    ordered: list[Path] = []

    def place(source: Path) -> None:
        if source in ordered:
            return
        for node in ast.parse((ROOT / source).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                place(modules[node.module])
        ordered.append(source)

    for source in modules.values():
        place(source)
    return ordered


def _names_of(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            names = (name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))
            yield from ((name.id, node) for name in names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def _split(text: str, tree: ast.Module, merged: set[str], repeated: list[ast.stmt]) -> tuple[list[str], str]:
    """The imports of a module, but for those from modules that are merged with it, and all else but its docstring and
    what an earlier one has, too."""
    lines = text.splitlines()
    dropped = {line for node in repeated for line in range(node.lineno - 1, node.end_lineno or node.lineno)}
    imports: list[str] = []
    for index, node in enumerate(tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr)
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (is_docstring or is_guard or isinstance(node, ast.Import | ast.ImportFrom)):
            continue
        dropped.update(range(node.lineno - 1, node.end_lineno or node.lineno))
        guarded = [one for one in node.body if not _is_from(one, merged)] if isinstance(node, ast.If) else []
        if guarded:
            imports.append("if TYPE_CHECKING:\n" + "\n".join(f"    {ast.unparse(one)}" for one in guarded))
        elif not is_docstring and not is_guard and not _is_from(node, {*merged, "__future__"}):
            imports.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return imports, "\n".join(line for number, line in enumerate(lines) if number not in dropped).strip() + "\n"


def _is_from(node: ast.stmt, modules: set[str]) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module in modules


def _carry_out(move: Move) -> None:
    if (ROOT / move.old).exists():
        (ROOT / move.new).parent.mkdir(parents=True, exist_ok=True)
        _git("mv", str(move.old), str(move.new))


def _dotted(path: Path) -> str:
    parts = path.relative_to("src").parts if path.parts[0] == "src" else path.parts
    return ".".join(parts).removesuffix(".py")


def _references(moves: list[Move]) -> re.Pattern[str]:
    ordered = sorted(moves, key=_longest_first)
    dotted = "|".join(re.escape(_dotted(move.old)) + _not_a_package(_dotted(move.old), moves) for move in ordered)
    paths = "|".join(re.escape(_short(move.old)) for move in ordered)
    return re.compile(
        rf"(?<![\w./])(?:(?P<dotted>{dotted})(?![\w])|(?P<path>(?:src/headrace/|tests/)?(?:{paths}))(?!\w))"
    )


def _not_a_package(old: str, moves: list[Move]) -> str:
    """A module may move into a package that has its name: what is in that package has moved already."""
    inside = [_dotted(move.new).removeprefix(f"{old}.") for move in moves if _dotted(move.new).startswith(f"{old}.")]
    return rf"(?!(?:\.| import )(?:{'|'.join(map(re.escape, inside))})\b)" if inside else ""


def _longest_first(move: Move) -> int:
    return -len(str(move.old))


def _short(path: Path) -> str:
    """As documentation names it: below `src/headrace` or below `tests`."""
    return str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else str(path.relative_to("tests"))


def _rewritten(text: str, moves: list[Move], references: re.Pattern[str]) -> str:
    by_dotted = {_dotted(move.old): _dotted(move.new) for move in moves}
    by_path = {_short(move.old): _short(move.new) for move in moves}

    def replacement(found: re.Match[str]) -> str:
        if (dotted := found["dotted"]) is not None:
            return by_dotted[dotted]
        path = found["path"]
        prefix = next((one for one in ("src/headrace/", "tests/") if path.startswith(one) and path not in by_path), "")
        return prefix + by_path[path.removeprefix(prefix)]

    text = references.sub(replacement, text)
    return _IMPORTED_MODULES.sub(lambda found: _split_import(found, by_dotted), text)


_IMPORTED_MODULES = re.compile(
    r"^(?P<indent> *)from (?P<package>(?:headrace|tests)[\w.]*) import (?P<names>\w[^\n(]*)$", re.M
)


def _split_import(found: re.Match[str], by_dotted: dict[str, str]) -> str:
    """`from headrace.broker import timers, fetch`: each module that moved gets an import of its own."""
    kept, lines = [], []
    for name in found["names"].split(", "):
        module, _, alias = name.partition(" as ")
        target = by_dotted.get(f"{found['package']}.{module}")
        if target is None:
            kept.append(name)
            continue
        package, _, new = target.rpartition(".")
        known = alias or module
        lines.append(f"{found['indent']}from {package} import {new}{'' if known == new else f' as {known}'}")
    if kept:
        lines.insert(0, f"{found['indent']}from {found['package']} import {', '.join(kept)}")
    return "\n".join(lines) if len(kept) < len(found["names"].split(", ")) else found[0]


def _text_files() -> list[Path]:
    names = _git("ls-files", "-z").split("\0")
    chosen = (ROOT / name for name in names if name and not name.startswith(_SKIPPED))
    return [path for path in chosen if path.is_file() and path.suffix in TEXT and path.name != "LICENSE"]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
