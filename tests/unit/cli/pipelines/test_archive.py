"""`headrace archive ...` on folders, and `headrace consume --from-archive` against a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.archive.archive_support import TOPIC, TOPIC_ID, add, archive_in, in_place, staged
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun, Sent

from headrace.cli.main import main
from headrace.pipeline.archive_job import ArchiveJob, ArchiveSettings
from headrace.testkit.embedded import EmbeddedBroker


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    exit_code = main([*arguments])
    captured = capsys.readouterr()
    return exit_code, captured.out, captured.err


def rows(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


# --- show, verify, compact ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10, 20, 30)
    add(catalogue, 1, 5, 9)
    return tmp_path


def test_show_lists_the_range_of_each_partition(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = run(capsys, "archive", "show", str(folder))
    assert exit_code == 0
    assert [(r["partition"], r["first"], r["last"], r["records"], r["files"]) for r in rows(out)] == [
        (0, 0, 29, 30, 3),
        (1, 5, 8, 4, 1),
    ]
    exit_code, out, _ = run(capsys, "archive", "show", str(folder), TOPIC, "--files", "-o", "table")
    assert exit_code == 0
    assert out.splitlines()[0].split()[-1] == "FILE"
    assert len(out.splitlines()) == 5


@pytest.mark.parametrize("command", ["show", "verify", "compact"])
def test_a_folder_that_is_not_an_archive_is_a_one_line_error(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, out, err = run(capsys, "archive", command, str(tmp_path))
    assert (exit_code, out) == (1, "")
    assert err == f"error: {tmp_path} is not an archive: none of its folders has a manifest\n"


def test_a_topic_that_is_not_archived_is_a_one_line_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, _, err = run(capsys, "archive", "show", str(folder), "payments")
    assert exit_code == 1
    assert "holds nothing of a topic 'payments'" in err


def test_verify_finds_damage_and_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, err = run(capsys, "archive", "verify", str(folder))
    assert (exit_code, out) == (0, "")
    assert "4 files, 34 records" in err
    assert "no damage" in err
    (folder / TOPIC / in_place(folder)[1]).unlink()
    exit_code, out, err = run(capsys, "archive", "verify", str(folder), TOPIC)
    assert exit_code == 1
    assert [(r["damaged"], r["what"]) for r in rows(out)] == [(True, "it is missing")]
    assert "1 damaged" in err


def test_verify_reports_gaps_and_repairs_left_over_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    catalogue.add(TOPIC_ID, [staged(catalogue, 0, 12, 19)], gaps=True)
    (tmp_path / TOPIC / "p00009-00000000000000000000-00000000000000000009.parquet").write_bytes(b"stray")
    exit_code, out, _ = run(capsys, "archive", "verify", str(tmp_path))
    assert exit_code == 0
    assert [str(r["what"]).split(":")[0] for r in rows(out)] == [
        "no entry names it",
        "offsets 10 to 11 of partition 0 were never archived",
    ]
    exit_code, out, err = run(capsys, "archive", "verify", str(tmp_path), "--repair")
    assert exit_code == 0
    assert len(rows(out)) == 1
    assert "orders: 1 left-over file cleaned up" in err


def test_compact_merges_files_and_lists_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, err = run(capsys, "archive", "compact", str(folder), "--dry-run")
    assert exit_code == 0
    assert [(r["first"], r["last"], r["files"]) for r in rows(out)] == [(0, 29, 3)]
    assert "3 files would become 1" in err
    assert len(in_place(folder)) == 4
    exit_code, again, err = run(capsys, "archive", "compact", str(folder), TOPIC, "--target", "1MB")
    assert (exit_code, again) == (0, out)
    assert "3 files became 1" in err
    assert len(in_place(folder)) == 2
    assert run(capsys, "archive", "verify", str(folder))[0] == 0


def test_an_invalid_size_is_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, _, err = run(capsys, "archive", "compact", str(folder), "--target", "huge")
    assert exit_code == 2
    assert "'huge' is not a size" in err


@pytest.mark.parametrize("arguments", [["archive", "show", "here"], ["consume", "orders", "--from-archive", "here"]])
def test_without_pyarrow_the_error_names_the_installation(arguments: list[str]) -> None:
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from headrace.cli.main import main\n"
        "import asyncio, headrace.cli.topics.consume as consume\n"
        "consume.with_cluster = lambda server, work: asyncio.run(work(None))\n"
        f"sys.exit(main({arguments!r}))"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "pip install headrace[spark]" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


# --- consume --from-archive ---


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with EmbeddedBroker() as broker:
        yield Brokers(broker.address)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:200].replace("[", "-").replace("]", "")


def records(count: int, first: int = 0) -> list[Sent]:
    return [Sent(b"k", b"%d" % n, [("h", b"x")], 1_700_000_000_000 + n) for n in range(first, first + count)]


def archive(brokers: Brokers, topic: str, folder: Path) -> None:
    settings = msgspec.convert({"topics": [topic], "path": "archive", "file_records": 7}, ArchiveSettings)
    ArchiveJob(settings, folder).once(InProcessRun(brokers.address, folder))


@pytest.fixture
def past(brokers: Brokers, topic: str, tmp_path: Path) -> str:
    """A topic with offsets 0 to 19 in the archive, of which 0 to 14 are gone, and 20 to 29 in the log only."""
    brokers.create(topic)
    brokers.produce(topic, 0, records(20))
    archive(brokers, topic, tmp_path)
    brokers.produce(topic, 0, records(10, 20))
    brokers.trim(topic, 0, 15)
    return str(tmp_path / "archive")


def consumed(
    capsys: pytest.CaptureFixture[str], brokers: Brokers, topic: str, past: str, *arguments: str
) -> tuple[list[int], str]:
    exit_code, out, err = run(capsys, "consume", topic, "--from-archive", past, "--server", brokers.address, *arguments)
    assert exit_code == 0, err
    return [int(line) for line in out.split()], err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-e"], range(30)),
        (["-e", "-o", "start"], range(30)),
        (["-e", "-o", "+3"], range(3, 30)),
        (["-e", "-o", "8"], range(8, 30)),
        (["-e", "-o", "17"], range(17, 30)),
        (["-e", "-o", "25"], range(25, 30)),
        (["-e", "-o", "-12"], range(18, 30)),
        (["-e", "-o", "end"], range(0)),
        (["-e", "-o", "@1700000000009"], range(9, 30)),
        (["-e", "-o", "@1700000000024"], range(24, 30)),
        (["-e", "-o", "@1800000000000"], range(0)),
        (["-n", "4"], range(4)),
        (["-n", "25"], range(25)),
        (["-n", "30"], range(30)),
        (["-e", "-p", "0", "--read-committed"], range(30)),
    ],
)
def test_the_archive_is_read_first_and_the_log_from_its_end(
    brokers: Brokers,
    topic: str,
    past: str,
    arguments: list[str],
    expected: range,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, err = consumed(capsys, brokers, topic, past, *arguments)
    assert found == list(expected)
    assert err == f"{len(expected)} records\n"


def test_records_of_archive_and_log_have_the_same_format(
    brokers: Brokers, topic: str, past: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ("--server", brokers.address)
    _, out, _ = run(capsys, "consume", topic, "--from-archive", past, "-e", "--json", *server)
    assert [dict(row, value=None) for row in rows(out)] == [
        {
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": 1_700_000_000_000 + offset,
            "key": "k",
            "value": None,
            "headers": [["h", "x"]],
        }
        for offset in range(30)
    ]
    _, out, _ = run(capsys, "consume", topic, "--from-archive", past, "-n", "2", "-f", r"%p %o %h\n", *server)
    assert out == "0 0 h=x\n0 1 h=x\n"


def test_offsets_missing_from_both_are_reported(
    brokers: Brokers, topic: str, past: str, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers.trim(topic, 0, 24)
    found, err = consumed(capsys, brokers, topic, past, "-e")
    assert found == [*range(20), *range(24, 30)]
    assert f"offsets 20 to 23 of {topic}[0] are missing from both the archive and the log" in err


def test_a_topic_that_was_deleted_is_read_to_the_end_of_the_archive(
    brokers: Brokers, topic: str, past: str, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers.delete(topic)
    found, err = consumed(capsys, brokers, topic, past)
    assert found == list(range(20))
    assert "no longer exists: reading ends at the end of the archive" in err


def test_a_recreated_topic_does_not_continue_the_archive(
    brokers: Brokers, topic: str, past: str, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers.delete(topic)
    brokers.create(topic)
    exit_code, out, err = run(capsys, "consume", topic, "--from-archive", past, "-e", "--server", brokers.address)
    assert (exit_code, out) == (1, "")
    assert "does not continue it" in err


def test_a_partition_that_was_added_later_is_read_from_the_log(
    brokers: Brokers, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, records(3))
    archive(brokers, topic, tmp_path)
    brokers.produce(topic, 1, records(3, 10))
    found, _ = consumed(capsys, brokers, topic, str(tmp_path / "archive"), "-e")
    assert found == [0, 1, 2, 10, 11, 12]
    exit_code, _, err = run(
        capsys, "consume", topic, "--from-archive", str(tmp_path / "archive"), "-p", "5", "--server", brokers.address
    )
    assert exit_code == 1
    assert "has no partition 5" in err


def test_a_group_does_not_read_archives(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, _, err = run(capsys, "consume", "orders", "-g", "billing", "--from-archive", "here")
    assert exit_code == 2
    assert "-g cannot be combined with --from-archive" in err
