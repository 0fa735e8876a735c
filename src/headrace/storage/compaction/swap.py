"""Putting cleaned segments in the place of those that they were made of, whatever crash comes in between.

    drafts     <folder>/cleaned/ holds the new files under their final names, synced
    manifest   <folder>/compaction, written atomically: from now on the swap happens, now or at the next start
    exchange   old files get another name, new ones theirs
    conclude   that is made durable; then old files are removed, and checkpoints brought up to date; last of all the
               manifest goes, durably too: nobody may find it again once anything else has happened to the log

Every step may be repeated. `finish` does them all, for a log that is found with a manifest. Drafts without a manifest
are nothing.
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
    """Neighbouring segments, by their base offsets, and the one that they became; it begins where the first did."""

    replaced: list[int]
    mark: SegmentCheckpoint


class CompactionManifest(msgspec.Struct, frozen=True):
    groups: list[SegmentGroup]
    cleaned_offset: int  # below it all is clean now
    end_offset: int  # of the last segment that is replaced: older checkpoints do not know all of them


def write_manifest(disk: Disk, folder: str, manifest: CompactionManifest) -> None:
    """The decision. The drafts must be durable. Blocks."""
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
    """Names only, which is fast enough for the loop: to remove a large file is not."""
    for base in group.replaced:
        for suffix in SUFFIXES:
            name = file_name(base, suffix)
            path, draft = f"{folder}/{name}", f"{folder}/{DRAFTS}/{name}"
            has_successor = base == group.mark.base_offset and suffix in CLEANED_SUFFIXES
            if has_successor and not disk.exists(draft):
                continue  # exchanged before, by somebody whom a crash has stopped
            if disk.exists(path):
                disk.rename(path, path + DELETED)
            if has_successor:
                disk.rename(draft, path)


def complete_swap(disk: Disk, folder: str, manifest: CompactionManifest) -> int:
    """Everything behind the exchange. Returns the offset of the checkpoint that is left, if any. Blocks."""
    disk.sync_directory(folder)  # else a file could be lost with the folder of drafts that it came from
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
    """Do what the manifest says; False if that cannot be read any more. Blocks."""
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
    """Only one may stay that knows every replaced segment whole; it is told of their successors."""
    names = disk.list(folder)
    found = checkpoints.newest_checkpoint(disk, folder, names)
    kept = NO_CHECKPOINT
    if found is not None and found.offset >= manifest.end_offset:
        try:
            checkpoints.write_checkpoint_file(disk, folder, _updated_checkpoint(found, manifest))
            kept = found.offset
        except DiskFull:
            pass  # without any, the next start has more to read, but is no less right
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
