"""The names of a simulated disk: folders, and the changes of names that are not yet durable.

A name that was created, renamed or removed is durable when its folder was synced. In a power cut each other
change happens or does not, whatever its neighbours do; a rename happens as a whole or not at all.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from headrace.testkit.pages import FileNode


@dataclass(eq=False, slots=True)
class SimFolder:
    entries: dict[str, Node] = field(default_factory=dict)  # what a program sees
    durable: dict[str, Node] = field(default_factory=dict)


Node: TypeAlias = FileNode | SimFolder


@dataclass(eq=False, slots=True)
class _PendingNameChange:
    """The name in this folder now means that node, or nothing; a renamed node leaves its old name with it."""

    folder: SimFolder
    name: str
    node: Node | None
    left: SimFolder | None = None


class SimFileTree:
    def __init__(self) -> None:
        self.root = SimFolder()
        self._pending: list[_PendingNameChange] = []
        self._homes: dict[Node, tuple[SimFolder, str]] = {}  # where a node is found after a power cut

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

    def remove(self, path: str) -> Node:
        folder, name = self._place(path)
        if name not in folder.entries:
            raise _error(errno.ENOENT, path)
        node = folder.entries.pop(name)
        _mark_moved(node)
        self._pending.append(_PendingNameChange(folder, name, None))
        return node

    def rename(self, source: str, target: str) -> Node | None:
        """Returns the node that was replaced."""
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

    def lose(self, path: str) -> Node:
        """Let a name be gone, durably, although no program has removed it."""
        folder, name = self._place(path)
        node = self.remove(path)
        self._pending = [one for one in self._pending if (one.folder, one.name) != (folder, name)]
        folder.durable.pop(name, None)
        return node

    def sync_all(self) -> None:
        """Make all names and all files durable."""
        for change in self._pending:
            self._apply(change)
        self._pending.clear()
        for file in self.files().values():
            file.sync()

    def sync(self, folder: SimFolder) -> None:
        """Make this folder's names durable; a rename into it takes along what its old folder has pending."""
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
        """Become what the platter shows after a power cut; says which files there are."""
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
