"""The history checker finds every injected anomaly, and none in a clean history."""

from __future__ import annotations

import pytest
from tests.integration.history import History


@pytest.fixture
def history() -> History:
    clean = History()
    clean.sent[0] = {0, 1, 2, 3}
    clean.acknowledged[0] = {0: 0, 1: 1, 3: 2}
    clean.read[0] = [(0, 0), (1, 1), (2, 3)]
    return clean


def test_a_clean_history_has_no_anomalies_though_an_unacknowledged_value_is_missing(history: History) -> None:
    assert history.anomalies() == []


def test_a_lost_value_is_found(history: History) -> None:
    del history.read[0][1]
    assert history.anomalies() == ["partition 0: value 1 was acknowledged at offset 1 and is lost"]


def test_a_duplicate_is_found(history: History) -> None:
    history.read[0].append((3, 3))
    assert "partition 0: value 3 stands at offsets 2 and 3" in history.anomalies()


def test_a_value_out_of_order_is_found(history: History) -> None:
    history.read[0] = [(0, 1), (1, 0), (2, 3)]
    assert "partition 0: value 0 stands behind 1, but was sent before it" in history.anomalies()


def test_a_value_that_was_never_sent_is_found(history: History) -> None:
    history.read[0].append((3, 9))
    assert history.anomalies() == ["partition 0: value 9 at offset 3 was never sent"]


def test_an_acknowledged_offset_with_another_value_is_found(history: History) -> None:
    history.acknowledged[0][3] = 7
    assert history.anomalies() == ["partition 0: value 3 was acknowledged at offset 7 but stands at 2"]


def test_a_decreasing_offset_is_found(history: History) -> None:
    history.read[0] = [(0, 0), (1, 1), (1, 3)]
    assert "partition 0: offset 1 was read after 1" in history.anomalies()
