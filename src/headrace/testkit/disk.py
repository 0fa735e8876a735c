"""A disk in memory that loses what was not synced, as real disks do.

- `crash` is a power cut, or a kill -9 with `keep_page_cache`; `reopen` then gives the disk that the next process finds.
- What was synced survives: bytes by `File.sync`, names by `sync_directory`. Everything else is kept, lost, torn or
  mixed, page by page and name by name (see `file_tree`). `crash_after` makes any change of the disk the last one.
- A file whose path was renamed or removed can be used only while it is pinned. This is stricter than a real disk, which
  may close its descriptor at any time.
- `digest` covers every operation.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import Any, Literal, TypeAlias, TypeVar

from headrace.runtime.disk import LOCK_NAME, Buffer, DataFolderLocked, DiskFailed
from headrace.runtime.disk_errors import typed_error, typed_errors
from headrace.runtime.disk_threads import deliver
from headrace.testkit.file_tree import FileNode, SimFileTree, SimFolder
from headrace.testkit.loop import SimLoop

T = TypeVar("T")

DiskOperation: TypeAlias = Literal[
    "create", "append", "pwrite", "pread", "truncate", "sync", "make", "rename", "remove", "sync_directory"
]

KEEP_CHANCES = (0.0, 0.2, 0.5, 0.8, 1.0)  # one is drawn per power cut, so that extremes are frequent


class SimulatedPowerCut(BaseException):
    """The power of the host was cut. No code of the host may handle this, so it is not an `Exception`."""


@dataclass(slots=True)
class _InjectedFault:
    operation: DiskOperation
    pattern: str
    error: int


class SimDisk:
    """Implements `headrace.runtime.disk.Disk`."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.capacity_bytes = 1 << 40
        self.cold_chance = 0.05  # probability that `pread_hot` returns None
        self.delay_seconds = (0.00005, 0.002)  # of calls in the disk threads
        self.operations = 0  # changes so far, which `crash_after` counts
        self.on_power_cut: Callable[[SimulatedPowerCut], None] | None = None
        self.on_damage_used: Callable[[str, int], None] | None = None  # with the path and the position of a flipped bit
        if isinstance(loop, SimLoop):
            self.on_power_cut = loop.halt
        self._seed = seed
        self._random = Random(f"disk {seed}")
        self._tree = SimFileTree()
        self._digest = hashlib.blake2b(digest_size=16)
        self._used_bytes = 0
        self._faults: list[_InjectedFault] = []
        self._locked: set[str] = set()
        self._power_cut_at = -1
        self._dead = False
        self._is_in_thread = False

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # Faults

    def crash_after(self, operations: int) -> None:
        """Cut the power at the change after this many more."""
        self._power_cut_at = self.operations + operations

    def crash(self, *, keep_page_cache: bool = False) -> None:
        """Cut the power now, or only kill the process. Every later use of this object raises SimulatedPowerCut."""
        assert not self._dead, "crashed already"
        self._dead = True
        self._note("crash", "", keep_page_cache)
        if not keep_page_cache:
            keep_chance = self._random.choice(KEEP_CHANCES)
            for path in self._tree.lose_power(self._random, keep_chance):
                self._note("survived", path, hashlib.blake2b(self._tree.file(path).content).hexdigest())

    def reopen(self, loop: asyncio.AbstractEventLoop | None = None) -> SimDisk:
        """The disk that the next process finds after `crash`."""
        assert self._dead, "crash first"
        disk = SimDisk(self._seed, loop)
        disk.capacity_bytes, disk.cold_chance = self.capacity_bytes, self.cold_chance
        disk.delay_seconds = self.delay_seconds
        disk._random, disk._tree, disk._digest = self._random, self._tree, self._digest
        disk._used_bytes = sum(len(node.content) for node in self._tree.files().values())
        return disk

    def fail_next(self, operation: DiskOperation, pattern: str = "*", error: int = errno.EIO) -> None:
        """Let the next such operation on a path that matches `pattern` fail once."""
        self._faults.append(_InjectedFault(operation, pattern, error))

    def clear_failures(self) -> None:
        """Drop the injected failures that have not happened yet."""
        self._faults.clear()

    @property
    def pending_failures(self) -> int:
        """How many injected failures have not happened yet."""
        return len(self._faults)

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit, on the platter and in the page cache."""
        self._note("flip", path, position)
        self._tree.file(path).flip_bit(position, bit)

    def rotten(self) -> list[tuple[str, int]]:
        """The path and position of each flipped bit that is still there."""
        files = self._tree.files().items()
        return [(path, position) for path, node in files for position in sorted(node.rotten)]

    def lose(self, path: str) -> None:
        """Remove a file or folder durably. No process that has it open may run."""
        self._note("lose", path)
        self._tree.lose(path)
        self._used_bytes = sum(len(node.content) for node in self._tree.files().values())

    def write_back(self) -> None:
        """Write the whole page cache to the platter, as the kernel does some time after a process has ended."""
        self._note("write back", "/")
        self._tree.sync_all()

    # The interface `Disk`

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.check_alive()
        with typed_errors("open", path):
            if create and self._tree.find(path) is None:
                self.change("create", path)
                self._tree.add(path, FileNode())
            return SimFile(self, path, self._tree.file(path))

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._tree.find(path) is not None

    def list(self, path: str) -> list[str]:
        self.check_alive()
        with typed_errors("list", path):
            return sorted(self._tree.folder(path).entries)

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            parent = posixpath.dirname(posixpath.normpath(path)) or "/"
            self.make_directory(parent)
            with typed_errors("make directory", path):
                self.change("make", path)
                self._tree.add(path, SimFolder())
            self.sync_directory(parent)

    def make_directories(self, parent: str, names: Sequence[str]) -> None:
        for name in names:
            path = posixpath.join(parent, name)
            if not self.exists(path):
                with typed_errors("make directory", path):
                    self.change("make", path)
                    self._tree.add(path, SimFolder())
        self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        with typed_errors("rename", source):
            self.change("rename", source, target)
            replaced = self._tree.rename(source, target)
        if isinstance(replaced, FileNode):
            self._used_bytes -= len(replaced.content)

    def remove(self, path: str) -> None:
        with typed_errors("remove", path):
            self.change("remove", path)
            node = self._tree.file(path)
            self._tree.remove(path)
        self._used_bytes -= len(node.content)

    def remove_tree(self, path: str) -> None:
        self.check_alive()
        with typed_errors("remove tree", path):
            for name, node in sorted(self._tree.folder(path).entries.items()):
                if isinstance(node, SimFolder):
                    self.remove_tree(f"{path}/{name}")
                else:
                    self.remove(f"{path}/{name}")
            self.change("remove", path)
            self._tree.remove(path)

    def sync_directory(self, path: str) -> None:
        with typed_errors("sync directory", path):
            self.change("sync_directory", path)
            self._tree.sync(self._tree.folder(path))

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(file.size(), 0)

    def write_atomically(self, path: str, data: Buffer) -> None:
        draft = path + ".tmp"
        file = self.open(draft, create=True)
        file.truncate(0)
        file.append([data])
        file.sync()
        self.rename(draft, path)
        self.sync_directory(posixpath.dirname(path) or "/")

    def free_bytes(self, path: str) -> int:
        self.check_alive()
        with typed_errors("measure", path):
            self._tree.folder(path)
        return max(0, self.capacity_bytes - self._used_bytes)

    def total_bytes(self, path: str) -> int:
        self.check_alive()
        with typed_errors("measure", path):
            self._tree.folder(path)
        return self.capacity_bytes

    def lock(self, path: str) -> None:
        if path in self._locked:
            raise DataFolderLocked(f"{path} is in use by another process; stop it or choose another --data")
        self.open(posixpath.join(path, LOCK_NAME), create=True)
        self._locked.add(path)

    def run(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """As with real disk threads, the call happens at some moment while the caller waits."""
        self.check_alive()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        before, after = self._random.uniform(*self.delay_seconds), self._random.uniform(*self.delay_seconds)
        loop.call_later(before, self._work, loop, after, future, work, args)
        return future

    async def run_in_worker_process(self, work: Callable[..., T], *args: object, bytes_per_second: float) -> T:
        """Call `work` in one step of virtual time; each of its changes can be the last one before a power cut."""
        assert bytes_per_second > 0
        return await self.run(work, self, _no_pace, *args)

    # For SimFile

    def check_alive(self) -> None:
        if self._dead:
            raise SimulatedPowerCut

    def change(self, operation: DiskOperation, path: str, *details: object) -> None:
        """Announce a change. The power may be cut, or an injected failure raised."""
        self.check_alive()
        if self.operations == self._power_cut_at:
            self.crash()
            cut = SimulatedPowerCut(f"before {operation} {path}")
            if self.on_power_cut is not None:
                self.on_power_cut(cut)
            raise cut
        self.operations += 1
        self._note(operation, path, *details)
        self.fail_if_injected(operation, path)

    def fail_if_injected(self, operation: DiskOperation, path: str) -> None:
        for fault in self._faults:
            if fault.operation == operation and fnmatchcase(path, fault.pattern):
                self._faults.remove(fault)
                raise OSError(fault.error, os.strerror(fault.error), path)

    def is_cold(self, node: FileNode) -> bool:
        return not node.warm or self._random.random() < self.cold_chance

    def report_damage(self, path: str, node: FileNode, position: int, size: int) -> None:
        """Report flipped bits that are read on the event loop: a broker checks the bytes of its disk in disk threads,
        and reads on the loop the bytes that it is about to serve."""
        if self.on_damage_used is not None and not self._is_in_thread:
            for flipped in node.rotten.intersection(range(position, position + size)):
                self.on_damage_used(path, flipped)

    def _work(
        self,
        loop: asyncio.AbstractEventLoop,
        delay: float,
        future: asyncio.Future[Any],
        work: Callable[..., Any],
        args: tuple[object, ...],
    ) -> None:
        result, failure = None, None
        self._is_in_thread = True
        try:
            result = work(*args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the caller handles it, whatever it is
            failure = error
        finally:
            self._is_in_thread = False
        loop.call_later(delay, deliver, future, result, failure)

    def _note(self, operation: str, path: str, *details: object) -> None:
        self._digest.update(f"{operation} {path} {details}\n".encode())


def _no_pace(size_bytes: int) -> None:
    """Virtual time does not pass during a call."""


class SimFile:
    """Implements `headrace.runtime.disk.File`."""

    __slots__ = ("_closed", "_disk", "_moves", "_node", "_pins", "path")

    def __init__(self, disk: SimDisk, path: str, node: FileNode) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._moves = node.moves
        self._pins = 0
        self._closed = False

    def size(self) -> int:
        return len(self._node.content)

    def append(self, chunks: Sequence[Buffer]) -> int:
        self._check_usable()
        data, position = b"".join(chunks), self.size()
        try:
            self._disk.change("append", self.path, len(data))
            self._write(data, position)
        except OSError as error:
            # A part was written and then cut off, and both changes may reach the platter.
            self._node.write(data[: self._disk._random.randint(0, len(data))], position)
            self._node.truncate(position)
            raise typed_error(error, "append", self.path) from error
        return position

    def pread(self, size: int, position: int) -> bytes:
        self._check_usable()
        with typed_errors("read", self.path):
            self._disk.fail_if_injected("pread", self.path)
        self._node.warm = True
        if self._node.rotten:
            self._disk.report_damage(self.path, self._node, position, size)
        return bytes(self._node.content[position : position + size])

    def pread_hot(self, size: int, position: int) -> bytes | None:
        self._check_usable()
        if self._disk.is_cold(self._node):
            return None
        return bytes(self._node.content[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> None:
        self._check_usable()
        with typed_errors("write", self.path):
            self._disk.change("pwrite", self.path, position, len(data))
            self._write(bytes(data), position)

    def truncate(self, size: int) -> None:
        self._check_usable()
        with typed_errors("truncate", self.path):
            self._disk.change("truncate", self.path, size)
        self._disk._used_bytes += size - self.size()
        self._node.truncate(size)

    def sync(self) -> None:
        self._check_usable()
        try:
            self._disk.change("sync", self.path)
        except OSError as error:
            self._node.fail_sync()
            raise DiskFailed(f"sync {self.path}: {error.strerror}") from error
        self._node.sync()

    def descriptor(self) -> int:
        raise RuntimeError("there are no descriptors in a simulation: use ByteStream.send_file")

    def pin(self) -> None:
        self._check_usable()
        self._pins += 1

    def unpin(self) -> None:
        assert self._pins > 0
        self._pins -= 1

    def close(self) -> None:
        self._closed = True

    def _write(self, data: bytes, position: int) -> None:
        growth = max(0, position + len(data) - self.size())
        disk = self._disk
        if growth > max(0, disk.capacity_bytes - disk._used_bytes):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        disk._used_bytes += growth
        self._node.write(data, position)

    def _check_usable(self) -> None:
        self._disk.check_alive()
        if self._pins:
            return
        assert not self._closed, f"{self.path} was closed"
        assert self._moves == self._node.moves, f"{self.path} was renamed or removed: pin it before, or open it again"
