"""Where an archive lies: a folder of this machine, or a bucket. All names are relative to it, with slashes.

`create` is what two archivers meet at: of all who create one name, one succeeds, and what it wrote is there as a whole
or not at all. A folder gives that by a hard link, which also outlives a power cut. Object stores by way of pyarrow do
not: there `create` looks first and writes then, so `exclusive` is false, and there may be one archiver per topic only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from headrace.archive.errors import ArchiveStorageUnusable
from headrace.runtime.entropy import SystemEntropy


class StoredFile(NamedTuple):
    """A file in a folder of the place."""

    name: str
    size_bytes: int
    modified_ms: int


class ArchiveStorage(Protocol):
    exclusive: bool

    def read(self, name: str) -> bytes:
        """All of a file; raises FileNotFoundError, as do the others that need one."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of this name; whether it was written."""

    def writing(self, name: str) -> Any:
        """A context manager with a new file to be written; it is on disk at the end, and gone after an error."""

    def open(self, name: str) -> Any:
        """An open file for reading anywhere in it."""

    def files(self, folder: str) -> Sequence[StoredFile]:
        """The files in a folder by name; none if there is no such folder."""

    def folders(self) -> Sequence[str]:
        """The folders at the top."""

    def move(self, source: str, target: str) -> None:
        """Give a file another name; what had that name before is gone."""

    def delete(self, name: str) -> None:
        """Remove a file; it may be gone already."""


def open_storage(location: str) -> ArchiveStorage:
    """The place that a path or a URI names (s3://bucket/prefix, gs://..., file:///...)."""
    scheme, colon, _ = location.partition("://")
    if not colon:
        return LocalArchiveStorage(Path(location))
    if scheme == "file":
        return LocalArchiveStorage(Path(unquote(urlsplit(location).path)))
    return RemoteArchiveStorage(location)


class LocalArchiveStorage:
    exclusive = True

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def create(self, name: str, data: bytes) -> bool:
        path = self.root / name
        _make_folder(path.parent)
        draft = path.with_name(f".{path.name}.{SystemEntropy().token(9)}")
        try:
            with draft.open("xb") as file:
                file.write(data)
                _sync(file)
            os.link(draft, path)
            _sync_folder(path.parent)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            why = f"the file system of {self.root} has no hard links, without which archivers cannot be kept apart"
            raise ArchiveStorageUnusable(why) from error
        finally:
            draft.unlink(missing_ok=True)
        return True

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        path = self.root / name
        _make_folder(path.parent)
        try:
            with path.open("xb") as file:
                yield file
                _sync(file)
            _sync_folder(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def open(self, name: str) -> Any:
        import pyarrow

        return pyarrow.OSFile(str(self.root / name))

    def files(self, folder: str) -> Sequence[StoredFile]:
        found = []
        with suppress(FileNotFoundError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                # Between the listing and the look a file may go.
                with suppress(FileNotFoundError):
                    if entry.is_file():
                        about = entry.stat()
                        found.append(StoredFile(entry.name, about.st_size, about.st_mtime_ns // 1_000_000))
        return sorted(found)

    def folders(self) -> Sequence[str]:
        with suppress(FileNotFoundError), os.scandir(self.root) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
        return ()

    def move(self, source: str, target: str) -> None:
        path = self.root / target
        _make_folder(path.parent)
        os.replace(self.root / source, path)
        _sync_folder(path.parent)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)


class RemoteArchiveStorage:
    """By pyarrow.fs: S3, GCS, Azure, HDFS."""

    exclusive = False

    def __init__(self, uri: str) -> None:
        import pyarrow
        import pyarrow.fs

        try:
            self._files, root = pyarrow.fs.FileSystem.from_uri(uri)
        except (pyarrow.ArrowException, OSError) as error:
            raise ArchiveStorageUnusable(f"{uri} cannot be opened: {error}") from error
        self._root = root.rstrip("/")

    def read(self, name: str) -> bytes:
        with self._files.open_input_stream(self._path(name)) as file:
            data: bytes = file.read()
            return data

    def create(self, name: str, data: bytes) -> bool:
        if self._exists(name):
            return False
        with self.writing(name) as file:
            file.write(data)
        return self.read(name) == data

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        path = self._path(name)
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        try:
            with self._files.open_output_stream(path) as file:
                yield file
        except BaseException:
            self.delete(name)
            raise

    def open(self, name: str) -> Any:
        return self._files.open_input_file(self._path(name))

    def files(self, folder: str) -> Sequence[StoredFile]:
        listed = [about for about in self._listed(self._path(folder)) if about.is_file]
        return sorted(StoredFile(about.base_name, about.size, (about.mtime_ns or 0) // 1_000_000) for about in listed)

    def folders(self) -> Sequence[str]:
        return sorted(about.base_name for about in self._listed(self._root) if not about.is_file)

    def move(self, source: str, target: str) -> None:
        path = self._path(target)
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        self._files.move(self._path(source), path)

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _exists(self, name: str) -> bool:
        import pyarrow.fs

        kind = self._files.get_file_info(self._path(name)).type
        return bool(kind != pyarrow.fs.FileType.NotFound)

    def _listed(self, path: str) -> Sequence[Any]:
        import pyarrow.fs

        found: Sequence[Any] = self._files.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
        return found


def _make_folder(path: Path) -> None:
    """With the folders above it, each of them on disk before it is used."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
