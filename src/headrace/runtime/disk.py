"""The system interface `Disk`: files with positioned reads and writes, folders, and the threads that may block on them.

- A `File` has one writer. Its calls go to the page cache and never wait, except `sync` and cold reads, which belong
  inside `Disk.run`.
- Data is durable only after `sync`; a new, renamed or removed name only after `sync_directory` of its folder.
- A file is bound to its path: after a rename or removal it may be used only while it is pinned.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from headrace.runtime.disk_errors import DataFolderLocked, DiskFailed, DiskFull, typed_errors
from headrace.runtime.disk_threads import DiskThreads
from headrace.runtime.file_pool import Buffer, FilePool, SystemFile
from headrace.runtime.permissions import FOLDER_MODE, opener
from headrace.runtime.process_resources import LOCK_NAME, try_lock

if TYPE_CHECKING:
    from headrace.runtime.worker_process import WorkerProcess

__all__ = [
    "LOCK_NAME",
    "Buffer",
    "DataFolderLocked",
    "Disk",
    "DiskFailed",
    "DiskFull",
    "File",
    "IoPace",
    "LazyFile",
    "SystemDisk",
]

T = TypeVar("T")

# Limits the disk rate of a call: waits as long as reading or writing this many bytes may take.
IoPace: TypeAlias = Callable[[int], None]


class File(Protocol):
    """One file, opened lazily. The module docstring says what is durable and which calls may wait."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """The size of the file as known to this object; no system call after the first."""
        ...

    def append(self, chunks: Sequence[Buffer]) -> int:
        """Write all chunks at the end, or nothing. Returns the position where they begin.

        Raises `DiskFull` or `DiskFailed`; the file is then cut back to its previous size.
        """
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file. May wait for the disk."""
        ...

    def pread_hot(self, size: int, position: int) -> bytes | None:
        """As `pread`, but None if a part is not in the page cache."""
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; the file grows as needed."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make everything written before this call durable. Blocks. After a failure, never trust the file."""
        ...

    def descriptor(self) -> int:
        """The descriptor, for sendfile; valid until control returns to the event loop, or while pinned."""
        ...

    def pin(self) -> None:
        """Keep the descriptor open until `unpin`, even after `close`. Pins are counted. Call on the loop's thread."""
        ...

    def unpin(self) -> None: ...

    def close(self) -> None:
        """Close the descriptor as soon as nothing holds it. The file may not be used again."""
        ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """The file at `path`; raises `FileNotFoundError` if there is none and `create` is not set."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the folder and its missing parents, durably, if it does not exist."""
        ...

    def make_directories(self, parent: str, names: Sequence[str]) -> None:
        """Create folders in an existing one, made durable by a single sync, unless they exist."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or folder atomically; a file at `target` is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove one file; raises `FileNotFoundError` if there is none."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and its content."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in this folder durable. Blocks."""
        ...

    def read(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: Buffer) -> None:
        """Replace the file durably: after a crash it holds either the old or the new bytes. Blocks."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> None:
        """Lock this data folder until the process ends. Raises `DataFolderLocked` if another process holds it."""
        ...

    def run(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Call `work` in the disk threads; it is queued on return. Cancelling the future does not stop the call."""
        ...

    async def run_in_worker_process(self, work: Callable[..., T], *args: object, bytes_per_second: float) -> T:
        """Call `work(disk, pace, *args)` in a worker process, with a `Disk` and an `IoPace` of that process.

        `work` must be a module-level function; it, its arguments, its result and its errors are pickled. Cancelling the
        call kills the process. Raises `WorkerDied` if the process ended before the call did.
        """
        ...


class LazyFile:
    """A file of a disk that is opened when it is first used, and again after `close`."""

    __slots__ = ("_disk", "file", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.file: File | None = None

    def open(self, *, create: bool = False) -> File:
        if self.file is None:
            self.file = self._disk.open(self.path, create=create)
        return self.file

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class SystemDisk:
    """The real disk. Construct it on the loop's thread: only that thread evicts descriptors."""

    def __init__(self, threads: int = 4, open_files_max: int = 512) -> None:
        self._pool = FilePool(open_files_max)
        self._threads = DiskThreads(threads, when_done=self._pool.trim)
        self._worker_process: WorkerProcess | None = None
        self._locks: list[int] = []

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        file = SystemFile(self._pool, path)
        with typed_errors("open", path):
            if create:
                file.create()
            else:
                file.size()
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        with typed_errors("list", path):
            return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        path = os.path.abspath(path)
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            with typed_errors("make directory", folder):
                os.makedirs(folder, FOLDER_MODE, exist_ok=True)
            self.sync_directory(os.path.dirname(folder))

    def make_directories(self, parent: str, names: Sequence[str]) -> None:
        for name in names:
            # `suppress` is innermost, because an existing folder is not an error.
            with typed_errors("make directory", name), suppress(FileExistsError):
                os.mkdir(os.path.join(parent, name), FOLDER_MODE)
        self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        with typed_errors("rename", source):
            os.rename(source, target)

    def remove(self, path: str) -> None:
        with typed_errors("remove", path):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        import shutil  # it imports compression modules, which would slow down the start

        with typed_errors("remove tree", path):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        with typed_errors("sync directory", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, path: str) -> bytes:
        with typed_errors("read", path), open(path, "rb") as file:
            return file.read()

    def write_atomically(self, path: str, data: Buffer) -> None:
        draft = path + ".tmp"
        with typed_errors("write", draft), open(draft, "wb", buffering=0, opener=opener) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        self.rename(draft, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def free_bytes(self, path: str) -> int:
        with typed_errors("measure", path):
            space = os.statvfs(path)
        return space.f_bavail * space.f_frsize

    def total_bytes(self, path: str) -> int:
        with typed_errors("measure", path):
            space = os.statvfs(path)
        return space.f_blocks * space.f_frsize

    def lock(self, path: str) -> None:
        name = os.path.join(path, LOCK_NAME)
        with typed_errors("lock", name):
            descriptor = try_lock(name)
        if descriptor is None:
            raise DataFolderLocked(f"{path} is in use by another process; stop it or choose another --data")
        self._locks.append(descriptor)

    def run(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        return self._threads.run(work, args)

    async def run_in_worker_process(self, work: Callable[..., T], *args: object, bytes_per_second: float) -> T:
        if self._worker_process is None:
            from headrace.runtime.worker_process import WorkerProcess  # not needed at the start

            self._worker_process = WorkerProcess()
        return await self._worker_process.run(_with_own_disk, (work, *args), bytes_per_second)

    def close(self) -> None:
        """Finish the calls in the disk threads, end the worker process, and release the locks."""
        if self._worker_process is not None:
            self._worker_process.close()
        self._threads.close()
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()


def _with_own_disk(pace: IoPace, work: Callable[..., T], *args: object) -> T:
    return work(SystemDisk(), pace, *args)
