"""Apply a list of renamed classes, functions, methods and variables to the whole repository.

    python tools/rename/symbols.py tools/rename/classes.txt

Each line of a list is `WHERE OLD NEW`:

- `headrace.broker.partition Partition Replica`: the module-level name OLD of that module, wherever it is imported.
- `headrace.broker.partition.Partition forsake suspend_writes`: an attribute or method. Attributes cannot be told apart
  without types, so OLD is renamed in every file of `src`, `tests`, `bench`, `demo` and `examples`, as a name after a
  dot, as a method, as a field and as a keyword argument. Use it for names that have one meaning only; mypy finds the rest.
- `src/headrace/broker/produce.py ask read_partition`: every use of the name OLD in one file: local variables, parameters.

Comments, docstrings and documentation follow where they write OLD in backticks, or where OLD is a compound name
(`LedGroups`, `tell_copiers`) that cannot be an English word. Running a list twice changes nothing.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = ("tools/rename/", "CHANGELOG.md", "bench/results/", "docs/chaos/")
_COMPOUND = re.compile(r"[A-Za-z]+[a-z0-9][A-Z]\w*|_?[a-z0-9]+(?:_[a-z0-9]+)+")


class Rename(NamedTuple):
    where: str
    old: str
    new: str

    @property
    def is_attribute(self) -> bool:
        return self.where.rpartition(".")[2][:1].isupper() or self.where == "*"

    @property
    def is_compound(self) -> bool:
        return _COMPOUND.fullmatch(self.old) is not None


def main(lists: list[str]) -> int:
    renames = [Rename(*line.split("#")[0].split()) for name in lists for line in _lines(ROOT / name)]
    in_prose = {rename.old: rename.new for rename in renames if "/" not in rename.where}
    for path in _files():
        text = path.read_text(encoding="utf-8")
        changed = _in_python(text, path, renames) if path.suffix in {".py", ".pyi"} else text
        changed = _in_prose(changed, renames, in_prose, everything=path.suffix == ".md")
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    return 0


def _lines(path: Path) -> Iterator[str]:
    lines = (line.removeprefix("#+ ") for line in path.read_text(encoding="utf-8").splitlines())
    return (line for line in lines if line.split("#")[0].strip())


def _in_python(text: str, path: Path, renames: list[Rename]) -> str:
    text = _FROM.sub(lambda found: _aliased(found, renames), text)
    names, attributes, modules, local = _names_of(text, path, renames)
    if not names and not attributes and not modules and not local:
        return text
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    changes: list[tuple[int, int, int, str]] = []
    in_names: set[str] = set()
    for index, token in enumerate(tokens):
        if token.type in {tokenize.NEWLINE, tokenize.NL} and token.type == tokenize.NEWLINE:
            in_names = set()
        if token.type == tokenize.NAME and token.string in {"__slots__", "__all__", "setattr", "delattr"}:
            in_names.add(token.string)
        if token.type == tokenize.STRING and in_names and (old := token.string[1:-1]).isidentifier():
            mapping = names if "__all__" in in_names else {**attributes, **local}
            new = mapping.get(old)
            if "setattr" in in_names and index > 1 and tokens[index - 1].string == ",":
                new = modules.get((tokens[index - 2].string, old), new)
            if new is not None:
                changes.append((token.start[0] - 1, token.start[1] + 1, token.end[1] - 1, new))
                continue
        if token.type == tokenize.STRING and (new := names.get('"' + token.string[1:-1])) is not None:
            changes.append((token.start[0] - 1, token.start[1] + 1, token.end[1] - 1, new))
        if token.type == tokenize.STRING and "f" in token.string[:2].lower().split('"')[0].split("'")[0]:
            changes += _in_f_string(token, {**attributes, **names}, {**attributes, **local})
        if token.type != tokenize.NAME:
            continue
        after_dot = index > 0 and tokens[index - 1].string == "."
        owner = tokens[index - 2].string if after_dot and index > 1 else ""
        new = attributes.get(token.string)
        if after_dot or (index > 0 and tokens[index - 1].string == "def"):
            new = local.get(token.string, new)
        if after_dot:
            new = modules.get((owner, token.string), new)
        else:
            new = names.get(token.string, new)
        if new is not None:
            changes.append((token.start[0] - 1, token.start[1], token.end[1], new))
    for line, start, end, new in reversed(changes):
        lines[line] = lines[line][:start] + new + lines[line][end:]
    return "".join(lines)


_REFERENCE = re.compile(r"(?P<string>'[^']*'|\"[^\"]*\")|(?P<before>[\w.]?)(?<![\w])(?P<name>[A-Za-z_]\w*)")


def _in_f_string(
    token: tokenize.TokenInfo, names: dict[str, str], attributes: dict[str, str]
) -> Iterator[tuple[int, int, int, str]]:
    """The expressions in the braces of an f-string, which is one token before Python 3.12."""
    text, pieces, depth, start = token.string, [], 0, 0
    position, expression = 0, 0

    def renamed(found: re.Match[str]) -> str:
        if found["string"]:
            return found[0]
        new = (attributes if found["before"] == "." else names).get(found["name"])
        return found["before"] + (new or found["name"])

    while position < len(text):
        char = text[position]
        if depth == 0 and text.startswith(("{{", "}}"), position):
            position += 2
            continue
        if char == "{":
            depth += 1
            if depth == 1:
                pieces.append(text[start : position + 1])
                start = position + 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                pieces.append(_REFERENCE.sub(renamed, text[start:position]))
                start = position
        position += 1
    changed = "".join(pieces) + text[start:]
    if changed == text:
        return
    old_lines, new_lines = text.split("\n"), changed.split("\n")
    for number, (old, new) in enumerate(zip(old_lines, new_lines, strict=True)):
        first = token.start[1] if number == 0 else 0
        if old != new:
            yield token.start[0] - 1 + number, first, first + len(old), new


def _names_of(
    text: str, path: Path, renames: list[Rename]
) -> tuple[dict[str, str], dict[str, str], dict[tuple[str, str], str], dict[str, str]]:
    """What this file calls by each old name: plain names, attributes, and names behind a module's name."""
    here = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("src.").removesuffix(".__init__")
    names: dict[str, str] = {}
    attributes: dict[str, str] = {}
    local: dict[str, str] = {}
    modules: dict[tuple[str, str], str] = {}
    imports = dict(_imports(text))
    for where, old, new in renames:
        if Rename(where, old, new).is_attribute:
            attributes[old] = new
        elif "/" in where:
            if path == ROOT / where:
                (local if old.startswith(".") else names)[old.removeprefix(".")] = new
        elif where == here or imports.get((where, old)) == old:
            names[old] = new
        package, _, module = where.rpartition(".")
        if (alias := imports.get((package, module))) is not None:
            modules[alias, old] = new
    return names, attributes, modules, local


_FROM = re.compile(r"^[ \t]*from ([\w.]+) import (?:\(([^)]*)\)|([^\n(]+))", re.MULTILINE)


def _aliased(found: re.Match[str], renames: list[Rename]) -> str:
    """`import OLD as ALIAS`: OLD follows, ALIAS stays."""
    statement = found[0]
    for rename in renames:
        if rename.where == found[1]:
            statement = re.sub(rf"\b{re.escape(rename.old)}(?= as )", rename.new, statement)
    return statement


def _imports(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """(module, name) of each import, with the name that the file uses for it."""
    for found in _FROM.finditer(text):
        for part in re.sub(r"#[^\n]*", "", found[2] or found[3]).split(","):
            name, _, alias = part.strip().partition(" as ")
            if name:
                yield (found[1], name), alias.strip() or name


def _in_prose(text: str, renames: list[Rename], in_prose: dict[str, str], *, everything: bool) -> str:
    olds = [rename.old for rename in renames if "/" not in rename.where]
    if not any(old in text for old in olds):
        return text
    unique = {old for old in olds if olds.count(old) == 1}
    compound = {rename.old for rename in renames if rename.is_compound} & unique
    backticked = re.compile(
        rf"(?<=`)({'|'.join(sorted(map(re.escape, unique), key=len, reverse=True)) or '(?!)'})(?=[`.(])"
    )
    text = backticked.sub(lambda found: in_prose[found[0]], text)
    if compound:
        words = re.compile(rf"(?<![\w.])({'|'.join(sorted(map(re.escape, compound), key=len, reverse=True))})(?!\w)")
        if everything:
            return words.sub(lambda found: in_prose[found[0]], text)
        return _in_strings_and_comments(text, words, in_prose)
    return text


def _in_strings_and_comments(text: str, words: re.Pattern[str], in_prose: dict[str, str]) -> str:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return text
    lines = text.splitlines(keepends=True)
    for token in tokens:
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string):
            for number in range(token.start[0] - 1, token.end[0]):
                kept = token.start[1] if number == token.start[0] - 1 else 0
                lines[number] = lines[number][:kept] + words.sub(lambda found: in_prose[found[0]], lines[number][kept:])
    return "".join(lines)


def _files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    chosen = (ROOT / name for name in listing.split("\0") if name and not name.startswith(_SKIPPED))
    return [path for path in chosen if path.is_file() and path.suffix in {".py", ".pyi", ".md"}]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
