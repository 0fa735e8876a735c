"""Replace segments by cleaned ones, atomically with respect to crashes.

    drafts     <folder>/cleaned/ holds the new files under their final names, synced
    manifest   <folder>/compaction, written atomically: the commit point. From now on the swap is carried out, at once
               or at the next start
    exchange   old files are renamed, drafts get their final names
    complete   the renames are made durable, old files are removed, checkpoints are updated; at last the manifest is
               removed durably, because it must not be found again after the log has changed

Every step can be repeated. `resume_swap` runs them all for a log that is found with a manifest. Drafts without a
manifest are void.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from zlib import crc32

import msgspec
from msgspec.structs import replace

from headrace.runtime.disk import Disk, DiskFull
from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log.checkpoint import CHECKPOINT, Checkpoint, SegmentCheckpoint
from headrace.storage.segments.segment import CLEANED_SUFFIXES, DELETED, SUFFIXES, file_name

MANIFEST = "compaction"
DRAFTS = "cleaned"
NO_CHECKPOINT = -1
_CRC = Struct(">I")


class SegmentGroup(msgspec.Struct, frozen=True):
    """The base offsets of neighbouring segments, and the segment that replaces them; it begins where the first did."""

    replaced: list[int]
    mark: SegmentCheckpoint


class CompactionManifest(msgspec.Struct, frozen=True):
    groups: list[SegmentGroup]
    cleaned_offset: int  # everything below is clean
    end_offset: int  # of the last replaced segment: a checkpoint below it does not hold all of them


def write_manifest(disk: Disk, folder: str, manifest: CompactionManifest) -> None:
    """Commit the swap. The drafts must be durable. Blocks."""
    body = msgspec.json.encode(manifest)
    disk.write_atomically(f"{folder}/{MANIFEST}", _CRC.pack(crc32(body)) + body)


def read_manifest(disk: Disk, folder: str) -> CompactionManifest | None:
    """None if it is damaged."""
    data = disk.read(f"{folder}/{MANIFEST}")
    try:
        (crc,) = _CRC.unpack_from(data)
    except struct_error:
        return None
    return msgspec.json.decode(data[_CRC.size :], type=CompactionManifest) if crc32(data[_CRC.size :]) == crc else None


def exchange_names(disk: Disk, folder: str, group: SegmentGroup) -> None:
    """Rename the files of one group. Renames are fast enough for the event loop; removing a large file is not."""
    for base in group.replaced:
        for suffix in SUFFIXES:
            name = file_name(base, suffix)
            path, draft = f"{folder}/{name}", f"{folder}/{DRAFTS}/{name}"
            has_successor = base == group.mark.base_offset and suffix in CLEANED_SUFFIXES
            if has_successor and not disk.exists(draft):
                continue  # exchanged before a crash
            if disk.exists(path):
                disk.rename(path, path + DELETED)
            if has_successor:
                disk.rename(draft, path)


def complete_swap(disk: Disk, folder: str, manifest: CompactionManifest) -> int:
    """Complete the swap after the exchange. Returns the offset of the checkpoint that is left, or -1. Blocks."""
    disk.sync_directory(folder)  # otherwise removing the folder of drafts could remove a file that came from it
    for name in disk.list(folder):
        if name.endswith(DELETED):
            disk.remove(f"{folder}/{name}")
    offset = _update_checkpoints(disk, folder, manifest)
    remove_drafts(disk, folder)
    disk.sync_directory(folder)
    disk.remove(f"{folder}/{MANIFEST}")
    disk.sync_directory(folder)
    return offset


def resume_swap(disk: Disk, folder: str) -> bool:
    """Carry out a committed swap; False if its manifest is damaged. Blocks."""
    manifest = read_manifest(disk, folder)
    if manifest is None:
        return False
    for group in manifest.groups:
        exchange_names(disk, folder, group)
    complete_swap(disk, folder, manifest)
    return True


def remove_drafts(disk: Disk, folder: str) -> None:
    if disk.exists(f"{folder}/{DRAFTS}"):
        disk.remove_tree(f"{folder}/{DRAFTS}")


def _update_checkpoints(disk: Disk, folder: str, manifest: CompactionManifest) -> int:
    """Remove all checkpoints but one that holds every replaced segment as a whole; update that one."""
    names = disk.list(folder)
    found = checkpoints.newest_checkpoint(disk, folder, names)
    kept = NO_CHECKPOINT
    if found is not None and found.offset >= manifest.end_offset:
        try:
            checkpoints.write_checkpoint_file(disk, folder, _updated_checkpoint(found, manifest))
            kept = found.offset
        except DiskFull:
            pass  # without a checkpoint the next start reads more, and is still correct
    for offset in checkpoints.checkpoint_offsets(disk.list(folder)):
        if offset != kept:
            disk.remove(f"{folder}/{file_name(offset, CHECKPOINT)}")
    return kept


def _updated_checkpoint(checkpoint: Checkpoint, manifest: CompactionManifest) -> Checkpoint:
    marks = {mark.base_offset: mark for mark in checkpoint.segments}
    for group in manifest.groups:
        if any(base in marks for base in group.replaced):
            for base in group.replaced:
                marks.pop(base, None)
            marks[group.mark.base_offset] = group.mark
    return replace(
        checkpoint,
        segments=[marks[base] for base in sorted(marks)],
        cleaned_offset=max(checkpoint.cleaned_offset, manifest.cleaned_offset),
    )
