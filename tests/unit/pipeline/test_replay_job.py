"""The replay job copies each record once, in order and byte for byte, despite crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.archive.archive_support import offsets_in, rows_of
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun, Sent, sent

from headrace.archive.errors import NotInArchive
from headrace.model.errors import InvalidConfig, InvalidPartitions, UnknownTopicOrPartition
from headrace.pipeline.archive_job import ArchiveJob, ArchiveSettings
from headrace.pipeline.replay_job import ReplayJob, ReplaySettings
from headrace.pipeline.replay_task import ReplayAccount, ReplayChanged, ReplayTask, read_rows, with_origin


def job_of(topic: str, folder: Path, **settings: Any) -> ReplayJob:
    tables = {"topics": [topic], "to": "{topic}.again", "archive": "archive", "create": True, "chunk_records": 10}
    return ReplayJob(msgspec.convert(tables | settings, ReplaySettings), folder)


def archive(topic: str, run: InProcessRun, folder: Path, **settings: Any) -> None:
    tables = {"topics": [topic], "path": "archive", "file_records": 7} | settings
    ArchiveJob(msgspec.convert(tables, ArchiveSettings), folder).once(run)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_archived_and_deleted_records_are_restored_byte_for_byte(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, compression: str
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(25))
    brokers.produce(topic, 1, sent(18, 100))
    archive(topic, run, tmp_path)
    for partition in (0, 1):
        brokers.trim(topic, partition, -1)
    job = job_of(topic, tmp_path, compression=compression)
    assert job.plan(run) == [
        f"create topic {topic}.again with 2 partitions",
        f"{topic}[0]: offsets 0 to 24 to {topic}.again[0]",
        f"{topic}[1]: offsets 0 to 17 to {topic}.again[1]",
    ]
    outcome = job.once(run)
    assert outcome.ok
    assert outcome.figures["records"] == 43
    assert brokers.records(f"{topic}.again", 0) == sent(25)
    assert brokers.records(f"{topic}.again", 1) == sent(18, 100)
    assert (run.told[-1].done, run.told[-1].total) == (43, 43)


def test_a_topic_is_replayed_from_its_own_log(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(25))
    brokers.trim(topic, 0, 3)
    job_of(topic, tmp_path, archive=None).once(run)
    assert brokers.records(f"{topic}.again", 0) == sent(22, 3)


def test_a_finished_replay_is_not_repeated(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(25))
    archive(topic, run, tmp_path)
    job_of(topic, tmp_path).once(run)
    again = job_of(topic, tmp_path)
    assert again.plan(run) == ["nothing to replay: this pipeline has replayed everything"]
    assert again.once(run).figures["records"] == 0
    brokers.produce(topic, 0, sent(5, 25))
    archive(topic, run, tmp_path)
    assert again.once(run).figures["records"] == 5
    assert brokers.records(f"{topic}.again", 0) == sent(30)


@pytest.mark.parametrize("task", range(5))
def test_a_replay_that_fails_at_any_task_is_continued(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, task: int
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(25))
    brokers.produce(topic, 1, sent(15))
    archive(topic, run, tmp_path)
    tasks = 0

    def fail(_: object) -> None:
        nonlocal tasks
        tasks += 1
        if tasks == task + 1:
            raise RuntimeError("the executor is gone")

    run.session.sparkContext.before_task = fail
    with pytest.raises(RuntimeError):
        job_of(topic, tmp_path).once(run)
    run.session.sparkContext.before_task = lambda _: None
    job_of(topic, tmp_path, chunk_records=4).once(run)
    assert brokers.records(f"{topic}.again", 0) == sent(25)
    assert brokers.records(f"{topic}.again", 1) == sent(15)


@pytest.mark.parametrize("step", ["before the commit", "after the commit", "after the note"])
@pytest.mark.parametrize("work_is_kept", [True, False])
def test_a_driver_that_fails_around_a_commit_replays_each_record_once(
    brokers: Brokers,
    run: InProcessRun,
    topic: str,
    tmp_path: Path,
    step: str,
    work_is_kept: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(35))
    archive(topic, run, tmp_path)
    name = "replayed" if step == "after the note" else "commit"
    inner = getattr(ReplayAccount, name)
    calls = 0

    def dying(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 and step == "before the commit":
            raise KeyboardInterrupt
        result = inner(*arguments)
        if calls == 2:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ReplayAccount, name, dying)
        with pytest.raises(KeyboardInterrupt):
            job_of(topic, tmp_path).once(run)
    if not work_is_kept:
        (run.work / "replay.json").unlink()
    job_of(topic, tmp_path, chunk_records=8).once(run)
    assert brokers.records(f"{topic}.again", 0) == sent(35)


def test_positions_that_brokers_have_forgotten_are_read_from_the_work_folder(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgotten(*_: object) -> int:
        return -1

    brokers.create(topic)
    brokers.produce(topic, 0, sent(12))
    archive(topic, run, tmp_path)
    job_of(topic, tmp_path).once(run)
    monkeypatch.setattr("headrace.pipeline.replay_task.committed_sequence", forgotten)
    assert job_of(topic, tmp_path).once(run).figures["records"] == 0


def test_two_drivers_of_one_replay_do_not_write_a_record_twice(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.create(f"{topic}.again")
    brokers.produce(topic, 0, sent(40))
    archive(topic, run, tmp_path)
    other = InProcessRun(run.brokers, tmp_path / "elsewhere")
    other.name = run.name
    tasks = 0

    def race(_: object) -> None:
        nonlocal tasks
        tasks += 1
        if tasks == 2:
            # Ours has planned [10, 20); the other takes [10, 15) before that begins, and stops there.
            job_of(topic, tmp_path, chunk_records=5, to_offset=15).once(other)

    run.session.sparkContext.before_task = race
    job_of(topic, tmp_path).once(run)
    assert brokers.records(f"{topic}.again", 0) == sent(40)


def test_only_records_within_the_times_and_offsets_are_replayed(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(30))
    archive(topic, run, tmp_path)
    time = {"from_time": "1700000000009", "to_time": "1700000000020"}
    for number, source in enumerate(("archive", None)):
        job_of(topic, tmp_path, to=f"{topic}.{number}", archive=source, **time).once(_named(run, f"time-{number}"))
        assert brokers.records(f"{topic}.{number}", 0) == sent(11, 9)
    job_of(topic, tmp_path, to=f"{topic}.3", from_offset=3, to_offset=8).once(_named(run, "offsets"))
    assert brokers.records(f"{topic}.3", 0) == sent(5, 3)


def _named(run: InProcessRun, name: str) -> InProcessRun:
    found = InProcessRun(run.brokers, run.work / name)
    found.name = f"{run.name[-60:]}-{name}"
    return found


def test_origin_headers_name_the_source_of_a_record(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 1, sent(12))
    archive(topic, run, tmp_path)
    job_of(topic, tmp_path, origin_header=True).once(run)
    assert brokers.records(f"{topic}.again", 1) == [
        record._replace(
            headers=[
                *record.headers,
                ("headrace-origin-topic", topic.encode()),
                ("headrace-origin-partition", b"1"),
                ("headrace-origin-offset", b"%d" % offset),
            ]
        )
        for offset, record in enumerate(sent(12))
    ]


def test_origin_headers_of_rows_in_the_middle_of_a_batch() -> None:
    whole = rows_of(3, range(20))
    marked = with_origin(whole.slice(5, 9))
    for row, before in zip(marked.to_pylist(), whole.slice(5, 9).to_pylist(), strict=True):
        assert row["headers"][:-3] == before["headers"]
        assert [header["value"] for header in row["headers"][-3:]] == [b"orders", b"3", b"%d" % before["offset"]]
        assert {**row, "headers": None} == {**before, "headers": None}


def test_partitions_can_be_chosen_by_key_and_timestamps_be_new(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic, 1)
    brokers.create(f"{topic}.again", 3)
    brokers.produce(topic, 0, [Sent(b"k%d" % (n % 5), b"%d" % n) for n in range(50)])
    archive(topic, run, tmp_path)
    job_of(topic, tmp_path, keep_partitions=False, keep_timestamps=False, create=False).once(run)
    found = [brokers.records(f"{topic}.again", partition) for partition in range(3)]
    assert sum(map(len, found)) == 50
    assert sum(1 for records in found if records) > 1
    for records in found:
        for key in {record.key for record in records}:
            values = [int(record.value or b"") for record in records if record.key == key]
            assert len(values) == 10
            assert values == sorted(values)
        assert all(record.timestamp_ms > 1_700_000_000_000 for record in records)


def test_a_target_with_too_few_partitions_is_rejected(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic, 3)
    brokers.create(f"{topic}.again", 2)
    brokers.produce(topic, 2, sent(3))
    archive(topic, run, tmp_path)
    with pytest.raises(InvalidPartitions, match=r"--partitions 3`, or set keep_partitions = false"):
        job_of(topic, tmp_path).once(run)


def test_a_missing_target_is_created_only_if_configured(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(3))
    archive(topic, run, tmp_path)
    for work in (job_of(topic, tmp_path, create=False).once, job_of(topic, tmp_path, create=False).plan):
        with pytest.raises(UnknownTopicOrPartition, match="set `create = true` to create it"):
            work(run)


def test_a_topic_is_not_replayed_into_itself_but_can_be_restored(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(9))
    archive(topic, run, tmp_path)
    with pytest.raises(InvalidConfig, match="into itself"):
        job_of(topic, tmp_path, archive=None, to=topic).once(run)
    brokers.trim(topic, 0, -1)
    job_of(topic, tmp_path, to=topic).once(run)
    assert brokers.records(topic, 0) == sent(9)


def test_topics_can_have_different_targets(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    for suffix in ("a", "b"):
        brokers.create(f"{topic}-{suffix}")
        brokers.produce(f"{topic}-{suffix}", 0, sent(5, ord(suffix)))
        archive(f"{topic}-{suffix}", run, tmp_path)
    table = {f"{topic}-a": f"{topic}-x", f"{topic}-b": f"{topic}-y"}
    job_of(f"{topic}-[ab]", tmp_path, to=table).once(run)
    assert brokers.records(f"{topic}-x", 0) == sent(5, ord("a"))
    assert brokers.records(f"{topic}-y", 0) == sent(5, ord("b"))
    with pytest.raises(InvalidConfig, match="`to` has no target for it"):
        job_of(f"{topic}-a", tmp_path, to={"other": "z"}).once(run)


def test_a_changed_selection_is_rejected_midway(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(9))
    archive(topic, run, tmp_path)
    job_of(topic, tmp_path, from_offset=2, to_offset=5).once(run)
    job_of(topic, tmp_path, from_offset=2, to_offset=7).once(run)
    assert brokers.records(f"{topic}.again", 0) == sent(5, 2)
    with pytest.raises(ReplayChanged, match="rename it, or restore these settings"):
        job_of(topic, tmp_path, from_offset=3).once(run)


def test_a_recreated_target_is_filled_again(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(9))
    archive(topic, run, tmp_path)
    job_of(topic, tmp_path).once(run)
    brokers.delete(f"{topic}.again")
    job_of(topic, tmp_path).once(run)
    assert brokers.records(f"{topic}.again", 0) == sent(9)


def test_an_archive_without_the_topics_is_rejected(run: InProcessRun, tmp_path: Path) -> None:
    with pytest.raises(NotInArchive, match="none of the topics nowhere"):
        job_of("nowhere", tmp_path).once(run)


def test_a_stop_takes_effect_between_two_ranges(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(50))
    archive(topic, run, tmp_path)

    def stop(_: object) -> None:
        run.stop_was_requested = True

    run.session.sparkContext.before_task = stop
    assert job_of(topic, tmp_path).once(run).figures["records"] == 10
    run.stop_was_requested, run.session.sparkContext.before_task = False, lambda _: None
    job_of(topic, tmp_path).once(run)
    assert brokers.records(f"{topic}.again", 0) == sent(50)


def test_a_task_sees_files_archived_since_the_previous_task(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    for first in (0, 5):
        brokers.produce(topic, 0, sent(5, first))
        archive(topic, run, tmp_path)
        stretch = ReplayTask("nowhere:1", str(tmp_path / "archive"), topic, 0, 0, first + 5)
        assert offsets_in(read_rows(stretch)) == list(range(first + 5))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"topics": []}, "topics: name at least one"),
        ({"from_time": "yesterday"}, "from_time: 'yesterday' is not a time"),
        ({"to_time": "12"}, None),
        ({"to": "a b"}, "to: Topic name is invalid"),
        ({"to": {"orders": "a b"}}, "to.orders: Topic name is invalid"),
        ({"chunk_records": 0}, "chunk_records: must be 1 or more"),
        ({"transaction_timeout": "long"}, "transaction_timeout: 'long' is not a duration"),
    ],
)
def test_what_is_wrong_with_settings_is_said(tmp_path: Path, settings: dict[str, Any], what: str | None) -> None:
    found = job_of("orders", tmp_path, **settings).problems()
    assert [text.startswith(what or "") for text in found] == ([True] if what else [])


def test_a_continuous_run_reports_progress_and_records_over_all_rounds(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    job = job_of(topic, tmp_path, archive=None)
    batches = iter([sent(4), sent(3, 4)])
    reports: list[tuple[int, int | None, int | None]] = []

    def wait(seconds: float) -> None:
        run.waited.append(seconds)
        reports.append((run.told[-1].done, run.told[-1].total, run.told[-1].lag))
        for batch in batches:
            brokers.produce(topic, 0, batch)
            return

    run.wait = wait  # type: ignore[method-assign]
    run.stop_after_waits = 4
    outcome = job.continuously(run, 5.0)
    assert reports == [(0, None, 0), (4, None, 0), (7, None, 0), (7, None, 0)]
    assert (outcome.summary, outcome.figures) == ("7 records replayed", {"records": 7})
