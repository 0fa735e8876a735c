"""Files of the real disk, and the pool that bounds how many descriptors they hold.

- Ten thousand partitions have more files than a process may open. A file that is clean (synced since its last write),
  not pinned and not in use by a disk thread can lose its descriptor, and is reopened when needed.
- A dirty file keeps its descriptor: the kernel reports a failed write-back only to descriptors that were open at the
  time.
- Descriptors are evicted only on the owner's thread (the event loop's). So code on the loop may use a descriptor until
  it yields; calls in other threads hold the file while they run.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock, get_ident
from typing import NoReturn, TypeAlias, TypeVar

from headrace.runtime.disk_errors import DiskFailed, typed_error, typed_errors
from headrace.runtime.permissions import FILE_MODE

Buffer: TypeAlias = bytes | bytearray | memoryview

T = TypeVar("T")

EVICTION_TRIES = 64  # bounds the search when nearly all files are dirty or pinned
PIECES_MAX = os.sysconf("SC_IOV_MAX")  # of one vectored write
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
NOT_OPEN = -1


class FilePool:
    """All open files, evicted by the clock algorithm: files used since the last pass of the hand are spared if
    possible.
    """

    def __init__(self, open_files_max: int) -> None:
        assert open_files_max > 0
        self.open_files_max = open_files_max
        self.owner = get_ident()
        self.lock = Lock()  # guards which files are open and which ones disk threads work on
        self._open: OrderedDict[SystemFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, file: SystemFile, flags: int) -> int:
        """Open the descriptor of a file. A disk thread may exceed the limit until its call is done."""
        owner = get_ident() == self.owner
        if owner and len(self._open) >= self.open_files_max:
            with self.lock:
                self._evict(len(self._open) - self.open_files_max + 1, EVICTION_TRIES)
        try:
            descriptor = os.open(file.path, flags, FILE_MODE)
        except OSError as error:
            if not owner or error.errno not in NO_DESCRIPTORS:
                raise
            with self.lock:
                self._evict(len(self._open) // 4 + 1, len(self._open))
            descriptor = os.open(file.path, flags, FILE_MODE)
        with self.lock:
            if file.opened != NOT_OPEN:  # another thread has opened it meanwhile
                os.close(descriptor)
            else:
                file.opened = descriptor
                self._open[file] = None
            return file.opened

    def trim(self) -> None:
        """Close descriptors above the limit. Call on the owner's thread."""
        if len(self._open) > self.open_files_max:
            with self.lock:
                self._evict(len(self._open) - self.open_files_max, EVICTION_TRIES)

    def close_when_done(self, file: SystemFile) -> None:
        with self.lock:
            file.closed = True
            self.close_if_done(file)

    def close_if_done(self, file: SystemFile) -> None:
        """Call with the lock held."""
        if file.closed and not file.pins and not file.working and file.opened != NOT_OPEN:
            del self._open[file]
            self._drop(file)

    def _evict(self, count: int, tries: int) -> None:
        recently_used: list[SystemFile] = []
        while count > 0 and tries > 0 and self._open:
            tries -= 1
            file = next(iter(self._open))
            self._open.move_to_end(file)
            if file.pins or file.working or file.dirty():
                continue
            if file.used:
                file.used = False
                recently_used.append(file)
                continue
            del self._open[file]
            self._drop(file)
            count -= 1
        for file in recently_used[: max(count, 0)]:
            if file.opened != NOT_OPEN:  # the hand may have visited it twice
                del self._open[file]
                self._drop(file)

    def _drop(self, file: SystemFile) -> None:
        descriptor, file.opened = file.opened, NOT_OPEN
        os.close(descriptor)


class SystemFile:
    """A file of the real disk; implements `headrace.runtime.disk.File`."""

    __slots__ = (
        "_nowait",
        "_pool",
        "_size",
        "_synced",
        "_writes",
        "closed",
        "opened",
        "path",
        "pins",
        "used",
        "working",
    )

    def __init__(self, pool: FilePool, path: str) -> None:
        self.path = path
        self.opened = NOT_OPEN  # the descriptor
        self.closed = False
        self.pins = 0  # held by the loop
        self.working = 0  # held by disk threads
        self.used = True
        self._pool = pool
        self._size = -1  # unknown until the file is opened or measured
        self._writes = 0
        self._synced = 0  # how many of the writes are known to be durable
        self._nowait = os.RWF_NOWAIT

    def create(self) -> None:
        """Open the file; create it if it is missing."""
        self._open(os.O_CREAT)

    def dirty(self) -> bool:
        return self._writes != self._synced

    def size(self) -> int:
        if self._size < 0:
            self._size = os.stat(self.path).st_size
        return self._size

    def append(self, chunks: Sequence[Buffer]) -> int:
        if get_ident() == self._pool.owner:
            return self._append(chunks)
        return self._held(self._append, chunks)

    def pread(self, size: int, position: int) -> bytes:
        if get_ident() == self._pool.owner:
            return self._pread(size, position)
        return self._held(self._pread, size, position)

    def pread_hot(self, size: int, position: int) -> bytes | None:
        descriptor = self.opened
        if descriptor < 0:
            descriptor = self._open()
        self.used = True
        buffer = bytearray(size)
        try:
            count = os.preadv(descriptor, (buffer,), position, self._nowait)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or not self._nowait:
                raise typed_error(error, "read", self.path) from error
            self._nowait = 0  # a file system in memory: always hot
            return self.pread_hot(size, position)
        if count < size:
            if position + count < self._size:
                return None
            del buffer[count:]
        return bytes(buffer)

    def pwrite(self, data: Buffer, position: int) -> None:
        if get_ident() == self._pool.owner:
            self._pwrite(data, position)
        else:
            self._held(self._pwrite, data, position)

    def truncate(self, size: int) -> None:
        self._held(self._truncate, size)

    def sync(self) -> None:
        self._held(self._sync)

    def descriptor(self) -> int:
        descriptor = self.opened
        if descriptor < 0:
            descriptor = self._open()
        self.used = True
        return descriptor

    def pin(self) -> None:
        if self.opened < 0:
            self._open()
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        if self.closed and not self.pins:
            self._pool.close_when_done(self)

    def close(self) -> None:
        self._pool.close_when_done(self)

    def _append(self, chunks: Sequence[Buffer]) -> int:
        descriptor = self.opened
        if descriptor < 0:
            descriptor = self._open()
        position = self._size
        self._writes += 1  # before the write, because a failed write leaves the file dirty too
        try:
            if len(chunks) == 1:
                data = chunks[0]
                size = len(data)
                written = os.pwrite(descriptor, data, position)
            else:
                if len(chunks) > PIECES_MAX:
                    chunks = [b"".join(chunks)]
                size = sum(map(len, chunks))
                written = os.pwritev(descriptor, chunks, position)
            if written != size:
                _write_all(descriptor, memoryview(b"".join(chunks))[written:], position + written)
        except OSError as error:
            self._take_back(descriptor, position, error)
        self._size = position + size
        return position

    def _take_back(self, descriptor: int, position: int, cause: OSError) -> NoReturn:
        """Undo a failed append, so that no torn batch stays in the file."""
        try:
            os.ftruncate(descriptor, position)
        except OSError as error:
            raise DiskFailed(f"append {self.path}: {cause}; cutting it back: {error}") from cause
        raise typed_error(cause, "append", self.path) from cause

    def _pread(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self.descriptor(), size, position)
            while len(data) < size and position + len(data) < self._size:
                piece = os.pread(self.descriptor(), size - len(data), position + len(data))
                if not piece:
                    break  # truncated meanwhile by its writer
                data += piece
        except FileNotFoundError:
            raise
        except OSError as error:
            raise typed_error(error, "read", self.path) from error
        return data

    def _pwrite(self, data: Buffer, position: int) -> None:
        descriptor = self.opened
        if descriptor < 0:
            descriptor = self._open()
        self._writes += 1
        size = len(data)
        try:
            written = os.pwrite(descriptor, data, position)
            if written != size:
                _write_all(descriptor, memoryview(data)[written:], position + written)
        except OSError as error:
            raise typed_error(error, "write", self.path) from error
        self._size = max(self._size, position + size)

    def _truncate(self, size: int) -> None:
        descriptor = self.descriptor()
        self._writes += 1
        with typed_errors("truncate", self.path):
            os.ftruncate(descriptor, size)
        self._size = size

    def _sync(self) -> None:
        descriptor = self.descriptor()
        writes = self._writes  # writes during the sync may not be covered
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # Even a full disk is final here: the kernel has dropped the pages that it could not write back.
            raise DiskFailed(f"sync {self.path}: {error.strerror or error}") from error
        self._synced = writes

    def _held(self, work: Callable[..., T], *args: object) -> T:
        """Call `work` while the file can be neither evicted nor closed."""
        pool = self._pool
        with pool.lock:
            self.working += 1
        try:
            return work(*args)
        finally:
            with pool.lock:
                self.working -= 1
                pool.close_if_done(self)

    def _open(self, flags: int = 0) -> int:
        assert not self.closed, f"{self.path} was closed"
        with typed_errors("open", self.path):
            descriptor = self._pool.open(self, os.O_RDWR | os.O_CLOEXEC | flags)
            if self._size < 0:
                self._size = os.fstat(descriptor).st_size
        return descriptor


def _write_all(descriptor: int, rest: memoryview, position: int) -> None:
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest = rest[written:]
        position += written
