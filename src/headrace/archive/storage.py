"""The storage of an archive: a local folder or an object store. All names are relative to it, with slashes.

- `create` synchronizes concurrent archivers: of all calls with one name, one succeeds, and its data is there as a whole
  or not at all. A local folder provides this with a hard link, which also survives a power failure.
- Object stores accessed through pyarrow do not: `create` checks first and then writes, so `exclusive` is false, and
  only one archiver per topic may run.
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
    """A file in a folder of the storage."""

    name: str
    size_bytes: int
    modified_ms: int


class ArchiveStorage(Protocol):
    exclusive: bool

    def read(self, name: str) -> bytes:
        """The content of a file. Like the other methods that need a file, raises FileNotFoundError."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file unless the name exists. False if it does."""

    def writing(self, name: str) -> Any:
        """A context manager for a new file. At the end the file is durable; after an error it is removed."""

    def open(self, name: str) -> Any:
        """Open a file for random access reads."""

    def files(self, folder: str) -> Sequence[StoredFile]:
        """The files in a folder, sorted by name; none if the folder does not exist."""

    def folders(self) -> Sequence[str]:
        """The top-level folders."""

    def move(self, source: str, target: str) -> None:
        """Rename a file; a file at `target` is replaced."""

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""


def open_storage(location: str) -> ArchiveStorage:
    """The storage at a path or a URI (s3://bucket/prefix, gs://..., file:///...)."""
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
            raise ArchiveStorageUnusable(
                f"the file system of {self.root} has no hard links, which concurrent archivers need; use another path"
            ) from error
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
                # A file may be removed after it was listed.
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
    """An object store, through pyarrow.fs: S3, GCS, Azure, HDFS."""

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
    """Create a folder with its parents, each durable before it is used."""
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
