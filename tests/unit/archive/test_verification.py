"""Verification finds what is lost, altered and left over; repair loses nothing."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
from tests.unit.archive.archive_support import (
    TOPIC,
    TOPIC_ID,
    ProcessCrashed,
    add,
    archive_in,
    in_place,
    offsets_in,
    staged,
)

from headrace.archive.catalogue import Archive
from headrace.archive.storage import LocalArchiveStorage
from headrace.archive.verification import UnarchivedRange, gaps, repair, verify

NOW_MS = 1_800_000_000_000


def test_a_sound_archive_has_no_flaws(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10, 20)
    catalogue.add(TOPIC_ID, [staged(catalogue, 1, 0, 9, [])])
    assert list(verify(catalogue)) == []
    assert list(gaps(catalogue)) == []


def test_lost_and_altered_files_are_damage(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    lost, altered, _ = add(catalogue, 0, 0, 10, 20, 30)
    (tmp_path / TOPIC / lost.name).unlink()
    data = bytearray((tmp_path / TOPIC / altered.name).read_bytes())
    data[30] ^= 4
    (tmp_path / TOPIC / altered.name).write_bytes(data)
    damage = [flaw for flaw in verify(catalogue) if flaw.damaged]
    assert [flaw.file for flaw in damage] == [lost.name, altered.name]
    assert "missing" in damage[0].what
    assert "checksum" in damage[1].what


def test_a_manifest_that_counts_other_rows_is_damage(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    file = staged(catalogue, 0, 0, 9)
    catalogue.add(TOPIC_ID, [msgspec.structs.replace(file, records=11)])
    (flaw,) = verify(catalogue)
    assert flaw.damaged
    assert "10 rows where the manifest has 11" in flaw.what


def test_offsets_in_disorder_are_damage(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    file = staged(catalogue, 0, 0, 9, [0, 2, 2, 5])
    catalogue.add(TOPIC_ID, [file])
    (flaw,) = verify(catalogue)
    assert flaw.damaged
    assert "not in order" in flaw.what


def test_gaps_are_told_but_are_no_damage(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    catalogue.add(TOPIC_ID, [staged(catalogue, 0, 15, 19), staged(catalogue, 1, 3, 4)], gaps=True)
    assert list(verify(catalogue)) == []
    assert list(gaps(catalogue)) == [UnarchivedRange(TOPIC, 0, 10, 14)]


def test_repair_puts_in_place_and_sets_aside(tmp_path: Path) -> None:
    class Dying(LocalArchiveStorage):
        def move(self, source: str, target: str) -> None:
            raise ProcessCrashed

    catalogue = archive_in(tmp_path).open(TOPIC)
    (sound,) = add(catalogue, 0, 0, 10)
    dying = Archive("there", Dying(tmp_path)).open(TOPIC)
    with suppress(ProcessCrashed):
        add(dying, 0, 10, 20)
    stray = "p00007-00000000000000000000-00000000000000000009.parquet"
    shutil.copy(tmp_path / TOPIC / sound.name, tmp_path / TOPIC / stray)
    catalogue.refresh()
    flaws = list(verify(catalogue))
    assert not any(flaw.damaged for flaw in flaws)
    assert [flaw.what.split(":")[0] for flaw in flaws] == ["it is not in place yet", "no entry names it"]
    assert repair(catalogue, NOW_MS) == 1
    assert list(verify(catalogue)) == []
    assert len(in_place(tmp_path)) == 2
    assert (tmp_path / TOPIC / "_headrace/aside" / stray).exists()
    assert offsets_in(catalogue.read(0, 0, 100)) == list(range(20))
