"""The short form of chaos: the faults that matter most, each once. `make chaos MINUTES=30` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.outcome import Options
from tests.chaos.run import run
from tests.chaos.schedule import Planned, Round
from tests.integration.conftest import Figures

from headrace.model.errors import HeadraceError
from headrace.server.zookeeper import find_jars, find_java

PLAN = (
    Round((Planned("kill", "leader", 10.0),), 2.0, waits_for_in_sync=True),
    Round((Planned("cut off", "leader", 10.0),), 2.0, waits_for_in_sync=True),
    Round(
        (Planned("pause", "controller", 4.5), Planned("zookeeper kill", "leader of ZooKeeper", 6.0)),
        2.0,
        waits_for_in_sync=False,
    ),
    Round((Planned("mute", "group coordinator", 8.0),), 2.0, waits_for_in_sync=False),
    Round((Planned("full disk", "transaction coordinator", 5.0),), 1.0, waits_for_in_sync=False),
)


@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_or_reordered_whatever_is_killed_cut_paused_or_full(
    tmp_path: Path, figures: Figures
) -> None:
    try:
        find_java(), find_jars()
    except HeadraceError as error:
        pytest.skip(error.message)
    outcome = run(Options(seed=1, seconds=0.0, folder=tmp_path, rate=200.0, queue_rate=10.0, plan=PLAN))
    assert outcome.violations == []
    injected = [fault for faults in outcome.rounds for fault in faults]
    assert injected
    for kind, reason in outcome.impossible.items():
        figures.add(f"not injected: {kind}, because {reason}")
    for clients, reason in outcome.left_out.items():
        figures.add(f"left out: {clients}, because {reason}")
    figures.add(f"{len(injected)} faults, {outcome.counts}")
