"""Unit tests for the checks of the share group: they find planted violations, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chaos.queue_client import DELIVERIES_MAX
from tests.chaos.queue_history import DeadCopy, queue_history_of
from tests.chaos.share_checks import check_share_group
from tests.chaos.share_workload import MEMBERS, PUBLISHER

FIRST, SECOND = MEMBERS
ORDINARY, POISON, STUBBORN = "ordinary p-0", "poison p-1", "stubborn p-2"


class History:
    """A run without violations: a record released and then accepted, one rejected, one released up to the limit."""

    def __init__(self) -> None:
        self.log = {"shared:0:0": ORDINARY, "shared:0:1": POISON, "shared:1:0": STUBBORN}
        self.dead = [
            DeadCopy(POISON, "shared:0:1", 1, 1225),
            DeadCopy(STUBBORN, "shared:1:0", DELIVERIES_MAX, 1900 + 10 * DELIVERIES_MAX),
        ]
        self.lines: dict[str, list[list[Any]]] = {
            PUBLISHER: [
                *(["publish", 1000, value, None] for value in self.log.values()),
                *(["published", 1010, value] for value in self.log.values()),
            ]
        }
        for name in MEMBERS:
            self.lines[name] = []
        self.deliver(FIRST, 0, ORDINARY, "shared:0:0", 1, 1100, "nack", 1160)
        self.deliver(FIRST, 1, POISON, "shared:0:1", 1, 1200, "reject", 1220)
        self.deliver(SECOND, 0, ORDINARY, "shared:0:0", 2, 1700, "ack", 1720)
        for count in range(1, DELIVERIES_MAX + 1):
            granted = 1800 + 20 * count
            self.deliver(SECOND, count, STUBBORN, "shared:1:0", count, granted, "nack", granted + 5)

    def deliver(
        self,
        member: str,
        number: int,
        value: str,
        place: str,
        count: int,
        granted: int,
        how: str | None = None,
        confirmed: int | None = None,
    ) -> None:
        self.lines[member].append(["lease", number, value, place, count, granted, granted + 5000])
        if how is not None:
            self.lines[member].append(["settle", number, granted + 1, how, None])
        if confirmed is not None:
            self.lines[member].append(["settled", number, confirmed])

    def judged(self) -> list[str]:
        return check_share_group(queue_history_of(self.lines, self.log, self.dead))


@pytest.fixture
def history() -> History:
    return History()


def test_a_clean_run_is_found_clean(history: History) -> None:
    assert history.judged() == []


def test_an_acknowledged_record_that_is_gone_is_found(history: History) -> None:
    history.lines[PUBLISHER] += [["publish", 1000, "ordinary p-3", None], ["published", 1010, "ordinary p-3"]]
    assert history.judged() == ["lost: 'ordinary p-3' was acknowledged and is not in the topic"]


def test_a_record_that_was_never_delivered_is_found(history: History) -> None:
    history.lines[PUBLISHER].append(["publish", 1000, "ordinary p-3", None])
    history.log["shared:1:1"] = "ordinary p-3"
    assert history.judged() == ["never delivered: 'ordinary p-3', shared:1:1"]


def test_a_released_record_that_was_never_delivered_again_is_found(history: History) -> None:
    history.lines[SECOND] = history.lines[SECOND][3:]
    assert ["never settled: 'ordinary p-0'" in one for one in history.judged()] == [True]


@pytest.mark.parametrize(
    ("value", "place", "granted", "how"),
    [(ORDINARY, "shared:0:0", 1800, "ack"), (POISON, "shared:0:1", 1300, "reject")],
)
def test_a_delivery_after_a_confirmed_accept_or_reject_is_found(
    history: History, value: str, place: str, granted: int, how: str
) -> None:
    history.deliver(FIRST, 9, value, place, 3, granted)
    assert [f"80 ms after the {how} of" in one for one in history.judged()] == [True]


def test_a_delivery_that_may_be_older_than_the_confirmation_is_allowed(history: History) -> None:
    history.deliver(FIRST, 9, ORDINARY, "shared:0:0", 2, 1719)
    assert history.judged() == []


def test_a_record_may_be_delivered_again_if_its_accept_was_not_confirmed(history: History) -> None:
    del history.lines[SECOND][2]
    history.deliver(FIRST, 9, ORDINARY, "shared:0:0", 3, 7000, "ack", 7010)
    assert history.judged() == []


def test_a_delivery_beyond_the_limit_is_found(history: History) -> None:
    history.deliver(FIRST, 9, STUBBORN, "shared:1:0", DELIVERIES_MAX + 1, 3000, "nack", 3010)
    assert ["beyond the delivery limit: 'stubborn p-2'" in one for one in history.judged()] == [True]


def test_a_record_that_was_dead_lettered_before_the_limit_is_found(history: History) -> None:
    history.dead[1] = DeadCopy(STUBBORN, "shared:1:0", DELIVERIES_MAX - 1, 3000)
    assert ["died before the delivery limit: 'stubborn p-2'" in one for one in history.judged()] == [True]


def test_a_record_that_reached_the_limit_and_is_no_dead_letter_is_found(history: History) -> None:
    del history.dead[1]
    assert "dead letter lost: 'stubborn p-2', shared:1:0, is settled and not among the dead letters" in (
        history.judged()
    )


def test_a_release_that_was_forgotten_is_found(history: History) -> None:
    history.deliver(FIRST, 9, ORDINARY, "shared:0:0", 1, 1180, "nack", 1190)
    assert ["delivery count went back" in one and "20 ms after" in one for one in history.judged()] == [True]
