"""The files and folders of a simulated disk: what a program sees, what is durable, and what is pending in between.

- A write changes the page cache and leaves one pending piece per page. Until the file is synced, the kernel may write
  back a page at any time or never. After a power cut each page therefore shows some prefix of its pieces, independently
  of the other pages.
- The write in progress when the power fails is torn between two such states, at a 512-byte sector.
- The file size is independent: it may lag behind the data or run ahead of it (then zeros show).
- A name that was created, renamed or removed is durable when its folder was synced. In a power cut each other change
  happens or does not, independently; a rename happens as a whole or not at all.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

PAGE = 4096
SECTOR = 512
TEAR_CHANCE = 0.25


class FileNode:
    """The content of one file, without its name."""

    def __init__(self) -> None:
        self.content = bytearray()  # what a reader sees
        self.warm = True  # in the page cache
        self.moves = 0  # renames and removals
        self.rotten: set[int] = set()  # positions of flipped bits that were neither overwritten nor cut off
        self._durable = bytearray()
        self._pieces: dict[int, list[tuple[int, bytes]]] = {}  # page -> (offset in page, bytes), in order
        self._sizes: list[int] = []  # the sizes since the last sync, in order
        self._abandoned: set[int] = set()  # pages that a failed sync marked clean

    def write(self, data: bytes, position: int) -> None:
        if position + len(data) > len(self.content):
            self._grow(position + len(data))
        self.content[position : position + len(data)] = data
        if self.rotten:
            self.rotten.difference_update(range(position, position + len(data)))
        self._note(data, position)
        self._note_size()

    def truncate(self, size: int) -> None:
        if size < len(self.content):
            del self.content[size:]
            self._forget_rot_behind(size)
            self._note(bytes(-size % PAGE), size)  # zero the rest of the last page; later pages are dropped
        else:
            self._grow(size)
        self._note_size()

    def sync(self) -> None:
        """Make everything durable, except pages that an earlier failed sync has abandoned."""
        size = len(self.content)
        del self._durable[size:]
        self._durable.extend(bytes(size - len(self._durable)))  # never negative, because it was truncated above
        for page in [page for page in self._pieces if page not in self._abandoned]:
            start = page * PAGE
            self._durable[start : start + PAGE] = self.content[start : start + PAGE]
            del self._pieces[page]
        self._sizes.clear()

    def fail_sync(self) -> None:
        """Fail as the kernel does: report the error once and treat the pages as clean from then on."""
        self._abandoned.update(self._pieces)

    def lose_power(self, random: Random, keep_chance: float) -> None:
        """Replace the content by what survives a power cut."""
        survived = bytearray(self._durable).ljust(max([0, *self._sizes]), b"\0")
        for page, pieces in sorted(self._pieces.items()):
            start = page * PAGE
            before = survived[start : start + PAGE]
            after = _page_after_power_cut(before, pieces, random, keep_chance)
            survived[start : start + PAGE] = after[: len(before)]
        del survived[self._size_after_power_cut(random, keep_chance) :]
        self.content = survived
        self._forget_rot_behind(min(len(self._durable), len(survived)))  # flipped bits that were not durable are lost
        self.warm = False
        self._durable = bytearray(survived)
        self._pieces.clear()
        self._sizes.clear()
        self._abandoned.clear()

    def flip_bit(self, position: int, bit: int) -> None:
        """Flip a bit, both on the platter and in the page cache."""
        for data in (self.content, self._durable):
            if position < len(data):
                data[position] ^= 1 << bit
        self.rotten.add(position)

    def _forget_rot_behind(self, size: int) -> None:
        self.rotten = {position for position in self.rotten if position < size}

    def _grow(self, size: int) -> None:
        old_pages, pages = -(-len(self.content) // PAGE), -(-size // PAGE)
        self.content.extend(bytes(size - len(self.content)))
        for page in range(old_pages, pages):
            if page in self._pieces or page * PAGE < len(self._durable):
                self._note(bytes(PAGE), page * PAGE)  # it was cut off before, and returns empty

    def _note(self, data: bytes, position: int) -> None:
        taken = 0
        while taken < len(data):
            page, offset = divmod(position + taken, PAGE)
            piece = data[taken : taken + PAGE - offset]
            self._pieces.setdefault(page, []).append((offset, piece))
            self._abandoned.discard(page)  # the whole page is dirty again
            taken += len(piece)

    def _note_size(self) -> None:
        known = self._sizes[-1] if self._sizes else len(self._durable)
        if len(self.content) != known:
            self._sizes.append(len(self.content))

    def _size_after_power_cut(self, random: Random, keep_chance: float) -> int:
        sizes = [len(self._durable), *self._sizes]
        if random.random() < keep_chance:
            return sizes[-1]
        step = random.randrange(len(sizes))
        size = sizes[step]
        if step + 1 < len(sizes) and sizes[step + 1] > size and random.random() < 0.5:
            return random.randint(size, sizes[step + 1])  # a long write extends the file in steps
        return size


def _page_after_power_cut(
    durable: bytes | bytearray, pieces: list[tuple[int, bytes]], random: Random, keep_chance: float
) -> bytes:
    kept = len(pieces) if random.random() < keep_chance else random.randint(0, len(pieces) - 1)
    newer = _page_after(durable, pieces[:kept])
    if kept == 0 or random.random() >= TEAR_CHANCE:
        return newer
    older = _page_after(durable, pieces[: random.randint(0, kept - 1)])
    torn_at = random.randint(0, PAGE // SECTOR) * SECTOR
    return newer[:torn_at] + older[torn_at:]


def _page_after(durable: bytes | bytearray, pieces: list[tuple[int, bytes]]) -> bytes:
    page = bytearray(durable).ljust(PAGE, b"\0")
    for offset, piece in pieces:
        page[offset : offset + len(piece)] = piece
    return bytes(page)


@dataclass(eq=False, slots=True)
class SimFolder:
    entries: dict[str, Node] = field(default_factory=dict)  # what a program sees
    durable: dict[str, Node] = field(default_factory=dict)


Node: TypeAlias = FileNode | SimFolder


@dataclass(eq=False, slots=True)
class _PendingNameChange:
    """A pending change: the name in this folder refers to a node, or to nothing. A rename also removes the old name."""

    folder: SimFolder
    name: str
    node: Node | None
    left: SimFolder | None = None


class SimFileTree:
    def __init__(self) -> None:
        self.root = SimFolder()
        self._pending: list[_PendingNameChange] = []
        self._homes: dict[Node, tuple[SimFolder, str]] = {}  # the durable location of a node

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in _names(path):
            if not isinstance(node, SimFolder) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def folder(self, path: str) -> SimFolder:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, SimFolder):
            raise _error(errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> FileNode:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, SimFolder):
            raise _error(errno.EISDIR, path)
        return node

    def add(self, path: str, node: Node) -> None:
        folder, name = self._place(path)
        folder.entries[name] = node
        self._pending.append(_PendingNameChange(folder, name, node))

    def remove(self, path: str) -> None:
        folder, name = self._place(path)
        if name not in folder.entries:
            raise _error(errno.ENOENT, path)
        _mark_moved(folder.entries.pop(name))
        self._pending.append(_PendingNameChange(folder, name, None))

    def rename(self, source: str, target: str) -> Node | None:
        """Rename a node. Returns the node that was replaced, if any."""
        folder, name = self._place(source)
        if name not in folder.entries:
            raise _error(errno.ENOENT, source)
        node = folder.entries[name]
        target_folder, target_name = self._place(target)
        replaced = target_folder.entries.get(target_name)
        if replaced is node:
            return None
        if isinstance(replaced, SimFolder) and replaced.entries:
            raise _error(errno.ENOTEMPTY, target)
        if replaced is not None:
            if isinstance(replaced, SimFolder) != isinstance(node, SimFolder):
                raise _error(errno.ENOTDIR, target)
            _mark_moved(replaced)
        _mark_moved(node)
        del folder.entries[name]
        target_folder.entries[target_name] = node
        self._pending.append(_PendingNameChange(target_folder, target_name, node, left=folder))
        return replaced

    def lose(self, path: str) -> None:
        """Remove a name durably, although no program has removed it."""
        folder, name = self._place(path)
        self.remove(path)
        self._pending = [one for one in self._pending if (one.folder, one.name) != (folder, name)]
        folder.durable.pop(name, None)

    def sync_all(self) -> None:
        """Make all names and all files durable."""
        for change in self._pending:
            self._apply(change)
        self._pending.clear()
        for file in self.files().values():
            file.sync()

    def sync(self, folder: SimFolder) -> None:
        """Make the names of a folder durable. A rename into it also applies to the source folder."""
        folders = {id(folder)}
        folders.update(id(change.left) for change in self._pending if change.left and change.folder is folder)
        still_pending = []
        for change in self._pending:
            if id(change.folder) in folders:
                self._apply(change)
            else:
                still_pending.append(change)
        self._pending = still_pending

    def lose_power(self, random: Random, keep_chance: float) -> list[str]:
        """Apply a power cut to all names and files. Returns the paths of the files that are left."""
        for change in self._pending:
            if random.random() < keep_chance:
                self._apply(change)
        self._pending.clear()
        paths = []
        for path, node in _walk(self.root, ""):
            if isinstance(node, SimFolder):
                node.entries = dict(node.durable)
            else:
                node.lose_power(random, keep_chance)
                paths.append(path)
        return paths

    def files(self) -> dict[str, FileNode]:
        found = {}
        folders = [("", self.root)]
        for path, folder in folders:
            for name, node in sorted(folder.entries.items()):
                if isinstance(node, SimFolder):
                    folders.append((f"{path}/{name}", node))
                else:
                    found[f"{path}/{name}"] = node
        return found

    def _apply(self, change: _PendingNameChange) -> None:
        if change.node is None:
            change.folder.durable.pop(change.name, None)
            return
        home = self._homes.get(change.node)
        if home is not None and home[0].durable.get(home[1]) is change.node:
            del home[0].durable[home[1]]
        change.folder.durable[change.name] = change.node
        self._homes[change.node] = (change.folder, change.name)

    def _place(self, path: str) -> tuple[SimFolder, str]:
        parent, name = posixpath.split(posixpath.normpath(path))
        if not name:
            raise _error(errno.EINVAL, path)
        return self.folder(parent), name


def _walk(folder: SimFolder, path: str) -> Iterator[tuple[str, Node]]:
    yield path, folder
    for name, node in sorted(folder.durable.items()):
        if isinstance(node, SimFolder):
            yield from _walk(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", node


def _mark_moved(node: Node) -> None:
    if isinstance(node, SimFolder):
        for child in node.entries.values():
            _mark_moved(child)
    else:
        node.moves += 1


def _names(path: str) -> list[str]:
    return [name for name in posixpath.normpath(path).split("/") if name not in ("", ".")]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
