"""Unit tests for the checks of the queue: they find planted violations, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.queue_checks import check_queue, check_queue_clients
from tests.chaos.queue_client import DELIVERIES_MAX
from tests.chaos.queue_history import DeadCopy, queue_history_of
from tests.chaos.queue_workload import PUBLISHER, STRAGGLER, WORKERS
from tests.chaos.transcript import Transcript

Lines = dict[str, list[list[Any]]]
FIRST, SECOND = WORKERS


class RecordedRun:
    """A run without violations: an ack, a nack and an ack, a late ack, a reject, a dead letter, a delay, a
    cancellation."""

    def __init__(self) -> None:
        self.log = {
            "jobs:0:0": "ordinary p-0",
            "jobs:0:1": "poison p-1",
            "jobs:0:2": "stubborn p-2",
            "jobs:1:0": "ordinary p-3",
            "jobs:1:1": "ordinary p-4",
        }
        self.dead = [
            DeadCopy("poison p-1", "jobs:0:1", 1, 1230),
            DeadCopy("stubborn p-2", "jobs:0:2", DELIVERIES_MAX, 2000),
        ]
        self.lines: Lines = {
            PUBLISHER: [
                *(["publish", 1000, value, 5000 if value == "ordinary p-4" else None] for value in self.log.values()),
                *(["published", 1010, value] for value in self.log.values()),
                *(["publish", 1000, "ordinary p-5", 6000], ["published", 1010, "ordinary p-5"]),
                *(["cancel", 1020, "ordinary p-5"], ["cancelled", 1030, "ordinary p-5"]),
            ],
            STRAGGLER: [
                *(["lease", 0, "ordinary p-3", "jobs:1:0", 1, 1100, 2100], ["settle", 0, 2150, "late", None]),
                ["refused", 0, 2160, "it is over"],
            ],
            FIRST: [
                *(["lease", 0, "ordinary p-0", "jobs:0:0", 1, 1100, 3100], ["settle", 0, 1150, "nack", 500]),
                ["settled", 0, 1160],
                *(["lease", 1, "poison p-1", "jobs:0:1", 1, 1200, 3200], ["settle", 1, 1210, "reject", None]),
                ["settled", 1, 1220],
                *(["lease", 2, "ordinary p-4", "jobs:1:1", 1, 5010, 7010], ["settle", 2, 5020, "ack", None]),
                ["settled", 2, 5030],
            ],
            SECOND: [
                *(["lease", 0, "ordinary p-0", "jobs:0:0", 2, 1700, 3700], ["settle", 0, 1710, "ack", None]),
                ["settled", 0, 1720],
                *(["lease", 1, "stubborn p-2", "jobs:0:2", 1, 1800, 3800], ["settle", 1, 1810, "nack", 0]),
                *(["lease", 2, "ordinary p-3", "jobs:1:0", 2, 2130, 4130], ["settle", 2, 2170, "ack", None]),
                ["settled", 2, 2180],
            ],
        }

    def violations(self, *wrong_clocks: tuple[int, int]) -> list[str]:
        history = queue_history_of(self.lines, self.log, self.dead)
        history.wrong_clocks = wrong_clocks
        return check_queue(history)


@pytest.fixture
def run() -> RecordedRun:
    return RecordedRun()


def test_a_clean_run_is_found_clean(run: RecordedRun) -> None:
    assert run.violations() == []


def test_an_acknowledged_message_that_is_gone_is_found(run: RecordedRun) -> None:
    del run.log["jobs:1:1"]
    assert run.violations() == ["lost: 'ordinary p-4' was acknowledged and is not in the topic"]


def test_a_message_without_an_acknowledgement_may_be_gone(run: RecordedRun) -> None:
    run.lines[PUBLISHER].append(["publish", 1000, "ordinary p-6", None])
    assert run.violations() == []


def test_a_delayed_message_that_is_delivered_twice_is_found(run: RecordedRun) -> None:
    run.log["jobs:1:2"] = "ordinary p-4"
    assert "doubled: 'ordinary p-4' is in the topic 2 times" in run.violations()


def test_a_cancelled_message_that_is_delivered_is_found(run: RecordedRun) -> None:
    run.log["jobs:1:2"] = "ordinary p-5"
    assert "came though it was cancelled: 'ordinary p-5'" in run.violations()


def test_a_message_that_was_settled_without_a_delivery_is_found(run: RecordedRun) -> None:
    run.lines[FIRST] = run.lines[FIRST][:6]
    assert run.violations() == ["never delivered: 'ordinary p-4', jobs:1:1"]


def test_a_message_that_was_never_settled_is_found(run: RecordedRun) -> None:
    run.lines[FIRST] = run.lines[FIRST][:7]
    assert ["never settled" in one for one in run.violations()] == [True]


def test_a_delivery_after_the_ack_was_confirmed_is_found(run: RecordedRun) -> None:
    run.lines[FIRST].append(["lease", 3, "ordinary p-0", "jobs:0:0", 3, 1800, 3800])
    assert ["80 ms after the ack of worker-2" in one for one in run.violations()] == [True]


def test_a_delivery_after_the_reject_was_confirmed_is_found(run: RecordedRun) -> None:
    run.lines[SECOND].append(["lease", 3, "poison p-1", "jobs:0:1", 2, 1300, 3300])
    assert ["80 ms after the reject of worker-1" in one for one in run.violations()] == [True]


def test_a_message_may_be_delivered_again_if_the_ack_was_not_confirmed(run: RecordedRun) -> None:
    del run.lines[SECOND][2]
    run.lines[FIRST].append(["lease", 3, "ordinary p-0", "jobs:0:0", 3, 3800, 5800])
    assert run.violations() == []


def test_a_late_ack_that_was_accepted_is_found(run: RecordedRun) -> None:
    run.lines[STRAGGLER][2] = ["settled", 0, 2160]
    assert ["late ack accepted" in one and "50 ms after" in one for one in run.violations()] == [True]


def test_a_delivery_before_its_time_is_found(run: RecordedRun) -> None:
    run.lines[FIRST][6] = ["lease", 2, "ordinary p-4", "jobs:1:1", 1, 4900, 6900]
    assert ["too early" in one and "100 ms before it was due" in one for one in run.violations()] == [True]


def test_a_message_that_waits_while_a_clock_is_wrong_may_be_early(run: RecordedRun) -> None:
    run.lines[FIRST][6] = ["lease", 2, "ordinary p-4", "jobs:1:1", 1, 4900, 6900]
    assert run.violations((900, 1100)) == []
    assert run.violations((4000, 9000)) == []
    assert ["too early" in one for one in run.violations((100, 900), (5100, 9000))] == [True]


def test_a_nack_and_a_lease_are_checked_although_a_clock_is_wrong(run: RecordedRun) -> None:
    run.lines[SECOND][0] = ["lease", 0, "ordinary p-0", "jobs:0:0", 2, 1400, 3400]
    run.lines[STRAGGLER][2] = ["settled", 0, 2160]
    assert ["late ack" in one or "back too early" in one for one in run.violations((0, 9000))] == [True, True]


def test_a_delivery_before_the_delay_of_its_nack_is_found(run: RecordedRun) -> None:
    run.lines[SECOND][0] = ["lease", 0, "ordinary p-0", "jobs:0:0", 2, 1400, 3400]
    assert ["back too early" in one and "250 ms" in one for one in run.violations()] == [True]


def test_a_dead_letter_that_is_written_twice_is_found(run: RecordedRun) -> None:
    run.dead.append(run.dead[0])
    assert run.violations() == ["dead letter doubled: jobs:0:1 is there 2 times"]


def test_a_rejected_message_that_is_no_dead_letter_is_found(run: RecordedRun) -> None:
    del run.dead[0]
    assert ["dead letter lost: 'poison p-1'" in one for one in run.violations()] == [True]


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (DeadCopy("ordinary p-3", "jobs:1:0", DELIVERIES_MAX, 2200), "died after its ack was confirmed"),
        (DeadCopy("ordinary p-9", "jobs:9:0", DELIVERIES_MAX, 2200), "dead letter of nothing"),
    ],
)
def test_a_dead_letter_of_another_message_is_found(run: RecordedRun, planted: DeadCopy, found: str) -> None:
    run.dead.append(planted)
    assert [found in one for one in run.violations()] == [True]


def test_an_ack_of_a_message_that_is_already_a_dead_letter_may_be_confirmed(run: RecordedRun) -> None:
    run.dead.append(DeadCopy("ordinary p-3", "jobs:1:0", DELIVERIES_MAX, 2175))
    assert run.violations() == []


def test_a_message_that_died_before_it_was_delivered_often_enough_is_found(run: RecordedRun) -> None:
    del run.lines[FIRST][7:]
    run.dead.append(DeadCopy("ordinary p-4", "jobs:1:1", DELIVERIES_MAX, 6000))
    assert run.violations() == []
    run.dead[-1] = DeadCopy("ordinary p-4", "jobs:1:1", 1, 6000)
    assert ["dead letter that was not rejected" in one for one in run.violations()] == [True]


def test_a_publisher_that_gave_up_and_a_worker_that_ended_early_are_found(tmp_path: Path) -> None:
    transcripts = {}
    for name, entries in ((PUBLISHER, [["error", 1, "no answer"], ["end", 2]]), (FIRST, [["error", 1, "no answer"]])):
        path = tmp_path / name
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        transcripts[name] = Transcript(path)
        transcripts[name].read_on()
    assert check_queue_clients(transcripts, PUBLISHER) == [
        "worker-1 ended before it was stopped",
        "publisher: no answer",
    ]
