"""A short chaos run: the most important faults, each once. `make chaos MINUTES=30` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.run import run
from tests.chaos.run_result import Options
from tests.chaos.schedule import PlannedFault, Round
from tests.integration.conftest import Figures

from headrace.model.errors import HeadraceError
from headrace.server.zookeeper import find_jars, find_java

PLAN = (
    Round((PlannedFault("kill", "leader", 10.0),), 2.0, waits_for_in_sync=True),
    Round((PlannedFault("cut off", "leader", 10.0),), 2.0, waits_for_in_sync=True),
    Round(
        (PlannedFault("pause", "controller", 4.5), PlannedFault("zookeeper kill", "leader of ZooKeeper", 6.0)),
        2.0,
        waits_for_in_sync=False,
    ),
    Round((PlannedFault("mute", "group coordinator", 8.0),), 2.0, waits_for_in_sync=False),
    Round((PlannedFault("full disk", "transaction coordinator", 5.0),), 1.0, waits_for_in_sync=False),
)


@pytest.mark.timeout(900)
def test_a_short_run_with_the_most_important_faults_has_no_violations(tmp_path: Path, figures: Figures) -> None:
    try:
        find_java(), find_jars()
    except HeadraceError as error:
        pytest.skip(error.message)
    result = run(Options(seed=1, seconds=0.0, folder=tmp_path, rate=200.0, queue_rate=10.0, plan=PLAN))
    assert result.violations == []
    injected = [fault for faults in result.rounds for fault in faults]
    assert injected
    for kind, reason in result.impossible.items():
        figures.add(f"not injected: {kind}, because {reason}")
    for clients, reason in result.left_out.items():
        figures.add(f"left out: {clients}, because {reason}")
    figures.add(f"{len(injected)} faults, {result.counts}")
