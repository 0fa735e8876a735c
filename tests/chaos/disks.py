"""A small file system of its own for each broker: a file with ext4 in it, mounted through a loop device.

So one broker's disk can be full or stand still while the others' are well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

DISK_BYTES = 768 * 2**20
BALLAST = "ballast"
TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze", "fallocate")


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.image, self.folder = folder.with_suffix(".img"), folder
        with self.image.open("wb") as file:
            file.truncate(DISK_BYTES)  # sparse: what is not written takes no room
        _run("mkfs.ext4", "-q", "-m", "0", str(self.image))
        _run("mount", "-o", "loop", str(self.image), str(self.folder))

    def fill(self) -> None:
        """Take every block that is free."""
        free = os.statvfs(self.folder)
        # What fallocate cannot have it refuses, after it took the rest.
        command = ["fallocate", "--length", str(free.f_bavail * free.f_frsize), str(self.folder / BALLAST)]
        subprocess.run(command, check=False, capture_output=True)

    def empty(self) -> None:
        (self.folder / BALLAST).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Let every write wait, for as long as it takes until `thaw`."""
        _run("fsfreeze", "--freeze", str(self.folder))

    def thaw(self) -> None:
        _run("fsfreeze", "--unfreeze", str(self.folder))

    def close(self) -> None:
        """The file stays, for a closer look: `mount -o loop` shows what is in it."""
        unmount(self.folder)


def why_not(folder: Path) -> str | None:
    """The reason why no small disks are to be had here; None when they are."""
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
    # A disk that was left frozen cannot be unmounted; one that is not frozen refuses to be thawed.
    subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=False, capture_output=True)
    _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
