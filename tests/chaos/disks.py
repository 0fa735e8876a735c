"""A small file system for each broker: ext4 in a file, mounted through a loop device.

One broker's disk can be full, be frozen or lose its power without affecting the others.

- After `cut_power`, the disk has the synced data and any data that the kernel wrote back by itself. Dirty pages and
  uncommitted journal transactions are lost: ext4 is shut down without a flush of its journal, as in xfstests, and the
  next mount recovers from the journal.
- A disk has one loop device at a time. Hosts are namespaces with copies of all mounts. Each disk is mounted on a shared
  mount, so that an unmount applies to all of them; a remaining copy would keep the old file system alive.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.integration.process import wait_until

DISK_BYTES = 768 * 2**20
BALLAST = "ballast"
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_WITHOUT_LOG_FLUSH = struct.pack("I", 2)  # EXT4_GOING_FLAGS_NOLOGFLUSH
TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze", "fallocate")


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.image, self.folder = folder.with_suffix(".img"), folder
        with self.image.open("wb") as file:
            file.truncate(DISK_BYTES)  # sparse: unwritten blocks take no space
        _run("mkfs.ext4", "-q", "-m", "0", str(self.image))
        _run("mount", "--bind", str(self.folder), str(self.folder))
        _run("mount", "--make-shared", str(self.folder))
        self._mount()

    def fill(self) -> None:
        """Occupy all free blocks."""
        free = os.statvfs(self.folder)
        # fallocate fails after it has allocated all free blocks.
        command = ["fallocate", "--length", str(free.f_bavail * free.f_frsize), str(self.folder / BALLAST)]
        subprocess.run(command, check=False, capture_output=True)

    def empty(self) -> None:
        (self.folder / BALLAST).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Block every write until `thaw`."""
        _run("fsfreeze", "--freeze", str(self.folder))

    def thaw(self) -> None:
        _run("fsfreeze", "--unfreeze", str(self.folder))

    def cut_power(self) -> None:
        """Drop unsynced data, and mount the disk again. The broker has ended, or is about to."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_LOG_FLUSH)
        finally:
            os.close(descriptor)
        wait_until(
            self._is_unmounted, f"no process uses {self.folder}"
        )  # a worker process ends a little after its broker
        wait_until(lambda: not self._is_attached(), f"no loop device has {self.image}")
        self._mount()

    def close(self) -> None:
        """Unmount the disk. Its file stays; `mount -o loop` opens it."""
        for _ in ("the file system", "the shared mount that it stands on"):
            unmount(self.folder)

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.folder))

    def _is_unmounted(self) -> bool:
        return subprocess.run(["umount", str(self.folder)], check=False, capture_output=True).returncode == 0

    def _is_attached(self) -> bool:
        files = Path("/sys/block").glob("loop*/loop/backing_file")
        return any(_text(file) == str(self.image) for file in files)


def unavailable_reason(folder: Path) -> str | None:
    """Return why small disks are not possible on this machine; None if they are."""
    if os.geteuid() != 0:
        return "mounting small disks needs root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{' and '.join(missing)} not installed"
    try:
        probe = SmallDisk(folder / "probe")
        probe.close()
        probe.image.unlink()
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}"
    return None


def mounted_under(folder: Path) -> Iterator[Path]:
    for line in Path("/proc/mounts").read_text().splitlines():
        place = Path(line.split()[1])
        if place.is_relative_to(folder):
            yield place


def unmount(folder: Path) -> None:
    # A frozen disk cannot be unmounted; one that is not frozen cannot be thawed.
    subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=False, capture_output=True)
    _run("umount", "--lazy", str(folder))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the device was detached meanwhile
        return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
