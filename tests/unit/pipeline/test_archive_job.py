"""The archive job archives every offset once, despite crashes, races and trimming."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun, ManualClock, sent

from headrace.archive.catalogue import Archive, ArchiveCatalogue
from headrace.archive.errors import ArchiveGap, ArchiveOfAnotherTopic
from headrace.archive.names import FileRange
from headrace.client.metadata import TopicPartition
from headrace.model.errors import UnknownTopicOrPartition
from headrace.pipeline.archive_job import ArchiveJob, ArchiveSettings, ArchiveTask, run_archive_task
from headrace.pipeline.job import JobProgress


def job_of(topic: str, folder: Path, **settings: Any) -> ArchiveJob:
    tables = {"topics": [topic], "path": "archive", "file_records": 10} | settings
    return ArchiveJob(msgspec.convert(tables, ArchiveSettings), folder)


def opened(topic: str, folder: Path) -> ArchiveCatalogue:
    return Archive(str(folder / "archive")).open(topic)


def values_in(topic: str, folder: Path, partition: int = 0) -> list[bytes | None]:
    return [v for batch in opened(topic, folder).read(partition, 0, 10**9) for v in batch.column("value").to_pylist()]


def values(count: int, first: int = 0) -> list[bytes | None]:
    return [record.value for record in sent(count, first)]


def ranges_in(topic: str, folder: Path) -> list[FileRange]:
    return [file.range for file in opened(topic, folder).all_files]


def test_a_topic_is_archived_in_files_of_the_wanted_size(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(25))
    brokers.produce(topic, 1, sent(7))
    job = job_of(topic, tmp_path)
    assert job.plan(run) == [f"{topic}[0]: offsets 0 to 24 into 3 files", f"{topic}[1]: offsets 0 to 6 into 1 file"]
    assert run.sessions == 0
    outcome = job.once(run)
    assert outcome.ok
    assert (outcome.figures["records"], outcome.figures["files"]) == (32, 4)
    assert ranges_in(topic, tmp_path) == [(0, 0, 9), (0, 10, 19), (0, 20, 24), (1, 0, 6)]
    assert values_in(topic, tmp_path) == values(25)
    assert (run.told[-1].done, run.told[-1].total) == (32, 32)
    assert [p.done for p in run.told] == sorted(p.done for p in run.told)


def test_the_next_run_continues_at_the_end_of_the_archive(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    for first in (0, 13):
        brokers.produce(topic, 0, sent(13, first))
        job_of(topic, tmp_path).once(run)
    assert values_in(topic, tmp_path) == values(26)
    assert ranges_in(topic, tmp_path) == [(0, 0, 9), (0, 10, 12), (0, 13, 22), (0, 23, 25)]
    sessions = run.sessions
    assert job_of(topic, tmp_path).once(run).figures["records"] == 0
    assert job_of(topic, tmp_path).plan(run) == ["nothing to archive: the archive is up to date"]
    assert run.sessions == sessions, "Spark is not started for nothing"


def test_the_group_commits_the_end_of_the_archive(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(13))
    job_of(topic, tmp_path, group=f"g-{topic}").once(run)
    assert brokers.committed(f"g-{topic}") == {TopicPartition(topic, 0): 13}
    job_of(topic, tmp_path).once(run)
    assert brokers.committed(f"archive-{run.name}")[TopicPartition(topic, 0)] == 13


def test_records_of_aborted_and_open_transactions_are_not_archived(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.transact(topic, sent(5), commits=False)
    brokers.transact(topic, sent(5, 5), commits=True)
    job_of(topic, tmp_path).once(run)
    assert values_in(topic, tmp_path) == values(5, 5)
    assert opened(topic, tmp_path).end_offset(0) == 12


@pytest.mark.parametrize("task", range(6))
def test_a_run_that_fails_at_any_task_is_continued(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, task: int
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(25))
    brokers.produce(topic, 1, sent(25))
    seen: list[ArchiveTask] = []

    def fail(piece: ArchiveTask) -> None:
        seen.append(piece)
        if len(seen) == task + 1:
            raise RuntimeError("the executor is gone")

    run.session.sparkContext.before_task = fail
    with pytest.raises(RuntimeError, match="the executor is gone"):
        job_of(topic, tmp_path).once(run)
    assert run.session.sparkContext.cancelled == [f"{run.name}: archive"]
    assert list((tmp_path / "archive").glob("*/_headrace/tmp/*")) == []
    run.session.sparkContext.before_task = lambda piece: None
    job_of(topic, tmp_path).once(run)
    for partition in (0, 1):
        assert values_in(topic, tmp_path, partition) == values(25)


@pytest.mark.parametrize("change", range(18))
def test_a_driver_that_fails_at_any_change_of_the_archive_is_continued(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(25))
    changes = 0

    def breaking(name: str) -> None:
        inner = getattr(ArchiveCatalogue, name)

        def broken(self: ArchiveCatalogue, *arguments: Any, **named: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes > change // 2:
                if changes == change // 2 + 1 and change % 2:
                    inner(self, *arguments, **named)
                raise KeyboardInterrupt
            return inner(self, *arguments, **named)

        patch.setattr(ArchiveCatalogue, name, broken)

    with monkeypatch.context() as patch:
        for name in ("_append", "_move_to_final_names", "discard"):
            breaking(name)
        with suppress(KeyboardInterrupt):
            job_of(topic, tmp_path).once(run)
    job_of(topic, tmp_path).once(run)
    assert values_in(topic, tmp_path) == values(25)
    assert sorted(path.name for path in (tmp_path / "archive" / topic).glob("*.parquet")) == [
        file.name for file in opened(topic, tmp_path).all_files
    ]


def test_an_archiver_with_a_conflict_plans_again(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(25))
    brokers.produce(topic, 1, sent(25))

    def race(piece: ArchiveTask) -> None:
        run.session.sparkContext.before_task = lambda piece: None
        other = InProcessRun(run.brokers, tmp_path / "other")
        job_of(topic, tmp_path, file_records=7, topics=[topic]).once(other)

    run.session.sparkContext.before_task = race
    outcome = job_of(topic, tmp_path).once(run)
    assert outcome.ok
    for partition in (0, 1):
        assert values_in(topic, tmp_path, partition) == values(25)
    assert list((tmp_path / "archive" / topic / "_headrace/tmp").iterdir()) == []


def test_a_stop_leaves_a_valid_archive(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(95))

    def stop(piece: ArchiveTask) -> None:
        run.stop_was_requested = True

    run.session.sparkContext.before_task = stop
    assert job_of(topic, tmp_path).once(run).ok
    found = values_in(topic, tmp_path)
    assert found == values(len(found))
    run.stop_was_requested, run.session.sparkContext.before_task = False, lambda piece: None
    job_of(topic, tmp_path).once(run)
    assert values_in(topic, tmp_path) == values(95)


def test_records_removed_before_they_were_archived_raise_a_typed_error(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(20))
    job_of(topic, tmp_path).once(run)
    brokers.produce(topic, 0, sent(20, 20))
    brokers.trim(topic, 0, 25)
    with pytest.raises(ArchiveGap, match=rf"offsets 20 to 24 of {topic}\[0\] were removed .* on_data_loss"):
        job_of(topic, tmp_path).once(run)
    job_of(topic, tmp_path, on_data_loss="skip").once(run)
    assert values_in(topic, tmp_path) == values(20) + values(15, 25)


@pytest.mark.parametrize("rule", ["fail", "skip"])
def test_records_removed_while_they_are_archived(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, rule: str
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(30))

    def trim(piece: ArchiveTask) -> None:
        run.session.sparkContext.before_task = lambda piece: None
        brokers.trim(topic, 0, 15)

    run.session.sparkContext.defaultParallelism = 1
    run.session.sparkContext.before_task = trim
    job = job_of(topic, tmp_path, on_data_loss=rule)
    if rule == "fail":
        with pytest.raises(ArchiveGap, match="on_data_loss"):
            job.once(run)
    else:
        job.once(run)
        assert values_in(topic, tmp_path) == values(15, 15)


def test_a_recreated_topic_does_not_continue_the_archive(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(5))
    job_of(topic, tmp_path).once(run)
    brokers.delete(topic)
    brokers.create(topic)
    brokers.produce(topic, 0, sent(9))
    with pytest.raises(ArchiveOfAnotherTopic, match="or archive to another path"):
        job_of(topic, tmp_path).once(run)
    job_of(topic, tmp_path, path="another").once(run)


def test_a_topic_recreated_during_the_run_is_detected(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(5))

    def recreate(piece: ArchiveTask) -> None:
        brokers.delete(topic)
        brokers.create(topic)
        brokers.produce(topic, 0, sent(5, 100))

    run.session.sparkContext.before_task = recreate
    with pytest.raises(ArchiveOfAnotherTopic, match="while it was archived"):
        job_of(topic, tmp_path).once(run)
    assert opened(topic, tmp_path).topic_id is None


@pytest.mark.parametrize("begin", ["latest", "1700000000007"])
def test_an_archive_can_start_at_a_time_or_at_the_end(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, begin: str
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(10))
    settings = {"from": begin, "group": f"g-{topic}"}
    job_of(topic, tmp_path, **settings).plan(run)
    job_of(topic, tmp_path, **settings).once(run)
    assert values_in(topic, tmp_path) == ([] if begin == "latest" else values(3, 7))
    brokers.produce(topic, 0, sent(5, 10))
    job_of(topic, tmp_path, **settings).once(run)
    assert values_in(topic, tmp_path) == (values(5, 10) if begin == "latest" else values(8, 7))


def test_topics_are_chosen_by_pattern(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    for suffix in ("-a", "-b", "x"):
        brokers.create(topic + suffix)
        brokers.produce(topic + suffix, 0, sent(3))
    job_of(f"{topic}-[ab]", tmp_path).once(run)
    assert Archive(str(tmp_path / "archive")).topics() == [f"{topic}-a", f"{topic}-b"]


def test_a_missing_topic_is_rejected(run: InProcessRun, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        job_of("nowhere", tmp_path).once(run)


def test_small_files_are_merged_if_configured(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    for first in range(0, 40, 8):
        brokers.produce(topic, 0, sent(8, first))
        outcome = job_of(topic, tmp_path, compact=True).once(run)
    assert outcome.figures["merged"] == 1
    assert ranges_in(topic, tmp_path) == [(0, 0, 39)]
    assert values_in(topic, tmp_path) == values(40)


def test_a_continuous_run_waits_for_whole_files_or_for_the_interval(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(25))
    clock = ManualClock()
    settings = msgspec.convert(
        {"topics": [topic], "path": "archive", "file_records": 10, "flush_interval": "60s"}, ArchiveSettings
    )
    job = ArchiveJob(settings, tmp_path, clock)
    reached: list[int | None] = []

    def wait(seconds: float) -> None:
        run.waited.append(seconds)
        reached.append(opened(topic, tmp_path).end_offset(0))
        clock.advance(25)

    run.wait = wait  # type: ignore[method-assign]
    run.stop_after_waits = 4
    outcome = job.continuously(run, 5.0)
    assert reached == [20, 20, 20, 25]
    assert run.waited == [5.0] * 4
    assert (outcome.figures["records"], outcome.figures["files"]) == (25, 3)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"topics": []}, "topics: name at least one"),
        ({"topics": ["a("]}, "topics: `a(` is not a valid RE2 regular expression"),
        ({"file_bytes": "much"}, "file_bytes: 'much' is not a size"),
        ({"file_records": 0}, "file_records: must be 1 or more"),
        ({"flush_interval": "soon"}, "flush_interval: 'soon' is not a duration"),
        ({"from": "yesterday"}, "from: 'yesterday' is not a time"),
    ],
)
def test_invalid_settings_are_reported(tmp_path: Path, settings: dict[str, Any], what: str) -> None:
    (found,) = job_of("orders", tmp_path, **settings).problems()
    assert found.startswith(what)
    assert job_of("orders", tmp_path).problems() == []


def test_files_are_also_limited_by_bytes(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(200))
    job_of(topic, tmp_path, file_bytes="1kB", file_records=10**6).once(run)
    assert len(ranges_in(topic, tmp_path)) > 2
    assert values_in(topic, tmp_path) == values(200)


def test_a_task_reports_a_range_that_was_removed(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(20))
    job = job_of(topic, tmp_path)
    (todo,) = job._pending_ranges(run, Archive(str(tmp_path)))
    piece = next(job._tasks(run, todo, False))
    brokers.trim(topic, 0, 5)
    assert "the log starts at 5" in run_archive_task(piece).why  # type: ignore[union-attr]
    assert list((tmp_path / "archive").glob("*/_headrace/tmp/*")) == []


def test_a_continuous_run_reports_its_lag_and_counts_over_all_rounds(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    job = job_of(topic, tmp_path)
    batches = iter([sent(4), sent(20, 4)])
    reports: list[JobProgress] = []

    def wait(seconds: float) -> None:
        run.waited.append(seconds)
        reports.append(run.told[-1])
        for batch in batches:
            brokers.produce(topic, 0, batch)
            return

    run.wait = wait  # type: ignore[method-assign]
    run.stop_after_waits = 4
    outcome = job.continuously(run, 5.0)
    assert [(one.done, one.total, one.lag) for one in reports] == [
        (0, None, 0),
        (0, None, 4),
        (20, None, 4),
        (20, None, 4),
    ]
    assert reports[0].note == "0 files, 0 bytes"
    assert reports[1].note == "0 files, 0 bytes; waiting for a full file or flush_interval"
    assert (outcome.figures["records"], outcome.figures["files"]) == (20, 2)
    assert outcome.summary.startswith("20 records in 2 files")
    assert outcome.summary.endswith("; 4 offsets are not archived yet, the next run archives them")
