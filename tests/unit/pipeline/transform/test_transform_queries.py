"""Starting, monitoring and stopping queries, with fake queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from headrace.pipeline.job import JobProgress
from headrace.pipeline.transform.outputs import Output, TransformFailed, lag_of, run_queries


def batch(number: int, rows: int, *, end: int = 10, latest: int = 10) -> dict[str, Any]:
    source = {"endOffset": {"orders": {"0": end}}, "latestOffset": {"orders": {"0": latest}}}
    return {"batchId": number, "numInputRows": rows, "sources": [source]}


class FakeQuery:
    """Completes one batch per poll, and ends after the last."""

    def __init__(self, batches: list[dict[str, Any]], failure: Exception | None = None) -> None:
        self._coming = batches
        self._failure = failure
        self.recentProgress: list[dict[str, Any]] = []
        self.stopped = 0
        self.is_stopped = False
        self.status = {"isTriggerActive": True}

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def isActive(self) -> bool:
        return not self.is_stopped and (bool(self._coming) or self.status.get("forever", False))

    def exception(self) -> Exception | None:
        return self._failure if not self._coming else None

    def advance(self) -> None:
        if self._coming:
            self.recentProgress.append(self._coming.pop(0))

    def awaitTermination(self, seconds: int) -> None:
        self.advance()

    def stop(self) -> None:
        self.stopped += 1
        self.is_stopped = True


class FakeWriter:
    def __init__(self, query: FakeQuery, said: dict[str, Any]) -> None:
        self._query = query
        self.said = said

    def format(self, name: str) -> FakeWriter:
        self.said["format"] = name
        return self

    def options(self, **options: str) -> FakeWriter:
        self.said |= options
        return self

    def option(self, name: str, value: str) -> FakeWriter:
        self.said[name] = value
        return self

    def queryName(self, name: str) -> FakeWriter:
        self.said["queryName"] = name
        return self

    def trigger(self, **how: Any) -> FakeWriter:
        self.said["trigger"] = how
        return self

    def start(self) -> FakeQuery:
        return self._query


class FakeFrame:
    def __init__(self, query: FakeQuery) -> None:
        self.said: dict[str, Any] = {}
        self.writeStream = FakeWriter(query, self.said)


class FakeRun:
    def __init__(self, *queries: FakeQuery, looks: int = 1000) -> None:
        self.name = "p"
        self.brokers = "b:1"
        self.work = Path("work")
        self.spark = cast("Any", None)
        self.told: list[JobProgress] = []
        self._queries = queries
        self._looks = looks

    def report_progress(self, progress: JobProgress) -> None:
        self.told.append(progress)

    @property
    def stop_requested(self) -> bool:
        return self._looks <= 0

    def wait(self, seconds: float) -> None:
        self._looks -= 1
        for query in self._queries:
            query.advance()


def output(name: str, query: FakeQuery) -> Output:
    return Output(name, cast("Any", FakeFrame(query)), "headrace", {"topic": name})


def test_all_queries_read_to_the_end_and_rows_are_counted_once() -> None:
    first = FakeQuery([batch(0, 3, end=3, latest=10), batch(1, 4)])
    second = FakeQuery([batch(7, 5)])
    run = FakeRun(first, second)
    outputs = [output("a", first), output("b", second)]
    assert run_queries(run, outputs, "checks", None, "") == (12, True)
    assert cast("Any", outputs[0].frame).said == {
        "format": "headrace",
        "topic": "a",
        "queryName": "p.a",
        "checkpointLocation": "checks/a",
        "trigger": {"availableNow": True},
    }
    assert [(told.done, told.total, told.lag) for told in run.told] == [(0, None, None), (8, 15, 7), (12, 12, 0)]
    assert run.told[0].note == "a, b"


def test_a_continuous_run_sets_the_trigger() -> None:
    query = FakeQuery([batch(0, 1)])
    only = output("a", query)
    run = FakeRun(query)
    run_queries(run, [only], "checks", 1.5, "")
    assert cast("Any", only.frame).said["trigger"] == {"processingTime": "1500 milliseconds"}
    assert run.told[-1] == JobProgress(1, lag=0)


def test_when_a_query_fails_the_others_are_stopped_and_the_cause_is_raised() -> None:
    good = FakeQuery([batch(number, 1) for number in range(100)])
    bad = FakeQuery([batch(0, 1)], ValueError("Traceback (most recent call last):\n  File\nKeyError: 'x'\n"))
    run = FakeRun(good, bad)
    with pytest.raises(TransformFailed, match=r"^b: KeyError: 'x'$"):
        run_queries(run, [output("a", good), output("b", bad)], "checks", None, "")
    assert good.stopped == 1


def test_a_stop_waits_for_the_current_batch() -> None:
    query = FakeQuery([batch(number, 1) for number in range(100)])
    run = FakeRun(query, looks=3)
    rows, all_read = run_queries(run, [output("a", query)], "checks", None, "")
    assert (rows, all_read) == (4, False)  # three that were seen to end, and the one that was under way
    assert query.stopped == 1


def test_an_idle_query_is_stopped_at_once() -> None:
    query = FakeQuery([])
    query.status = {"isTriggerActive": False, "forever": True}
    assert run_queries(FakeRun(query, looks=0), [output("a", query)], "checks", 1.0, "") == (0, False)
    assert query.stopped == 1


def test_an_endless_batch_is_interrupted() -> None:
    query = FakeQuery([])
    query.status = {"isTriggerActive": True, "forever": True}
    run_queries(FakeRun(query, looks=0), [output("a", query)], "checks", 1.0, "")
    assert query.stopped == 1


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        ({"a": {"0": 3, "1": 4}}, {"a": {"0": 5, "1": 4}}, 2),
        ('{"a": {"0": 3}, "@ids": {"a": "x"}}', '{"a": {"0": 5}, "@ids": {"a": "x"}}', 2),
        ({"a": {"0": 3}}, {"a": {"0": 3, "1": 4}}, 0),
        ({"a": {"0": 9}}, {"a": {"0": 3}}, 0),
        ({"a": {"0": 3}}, None, None),
        (7, 9, None),
        ("not json", "{}", None),
    ],
)
def test_the_lag_is_the_distance_to_the_latest_offsets(end: Any, latest: Any, lag: int | None) -> None:
    assert lag_of({"endOffset": end, "latestOffset": latest}) == lag
