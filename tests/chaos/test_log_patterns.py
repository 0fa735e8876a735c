"""The patterns by which the harness reads the logs of brokers match the log statements in `src`.

A log statement that is reworded fails here, and not in the next chaos run, where the harness would wait in vain for a
line or report a fault that it injected as a bug.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.chaos.checks import BUGS
from tests.chaos.damage import Damage
from tests.chaos.faults import OUT_OF_SERVICE
from tests.chaos.namespaces import Host
from tests.chaos.nodes import BrokerNode

from headrace.runtime.tasks import BackgroundTaskDied
from headrace.server.process_logging import TextLines

SRC = Path(__file__).parents[2] / "src"
LOG = "/chaos/b1/data/logs/0123456789abcdef-0"
DISK_ERROR = "sync /data/logs/0123456789abcdef-0/00000000000000000000.log: Input/output error"
EXCUSED = {
    "headrace.broker.coordination.state_log",
    "headrace.broker.queues.subscription_shard",
    "headrace.broker.transactions.transactions_log",
}
"""The modules whose critical lines may follow from a failed fsync."""


class LogStatement(NamedTuple):
    module: str
    level: str
    text: str
    arguments: tuple[str, ...]
    """the source of each argument"""

    def line(self, **values: str) -> str:
        """Format the line as a broker prints it. `values`: the arguments whose last name is this one."""
        arguments = tuple(values.get(argument.rsplit(".", 1)[-1], "7") for argument in self.arguments)
        text = re.sub(r"%\w", "%s", self.text)
        arguments += ("7",) * (text.count("%s") - len(arguments))  # a starred argument stands for several
        record = logging.LogRecord(self.module, getattr(logging, self.level), "", 0, text, arguments, None)
        return TextLines("").format(record)


@cache
def log_statements(level: str) -> tuple[LogStatement, ...]:
    return tuple(
        statement
        for path in sorted(SRC.glob("headrace/**/*.py"))
        if f".{level}(" in (source := path.read_text())
        for statement in _log_statements_of(".".join(path.relative_to(SRC).with_suffix("").parts), source, level)
    )


def _log_statements_of(module: str, source: str, level: str) -> Iterator[LogStatement]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(ast.Name("log" | "logger"), name), [ast.Constant(str(text)), *arguments]):
                if name == level:
                    yield LogStatement(module, level.upper(), text, tuple(map(ast.unparse, arguments)))


def statements_of_quarantine() -> dict[str, LogStatement]:
    return {one.module: one for one in log_statements("error") if "quarantined" in one.text and one.arguments}


@pytest.fixture
def damage(tmp_path: Path) -> Damage:
    broker = BrokerNode("b1", Host("b1", "127.0.0.1"), tmp_path)
    broker.log_path.write_text("")
    return Damage(broker, Path(LOG), Path(LOG, "0.log"), 0, 0, 0)


def test_quarantine_at_run_time_and_at_the_start_is_recognized(damage: Damage) -> None:
    statements = statements_of_quarantine()
    runtime, recovery = statements["headrace.storage.log.log"], statements["headrace.storage.log.recovery"]
    damage.broker.log_path.write_text(runtime.line(folder=LOG) + "\n")
    assert damage.is_found_while_running
    damage.broker.log_path.write_text(recovery.line(folder=LOG) + "\n")
    assert damage.is_quarantined
    assert not damage.is_found_while_running


def test_quarantine_of_another_log_is_not_taken_for_this_one(damage: Damage) -> None:
    line = statements_of_quarantine()["headrace.storage.log.recovery"].line(folder=f"{LOG}1")
    damage.broker.log_path.write_text(line + "\n")
    assert not damage.is_quarantined


def test_the_critical_lines_that_follow_from_a_failed_fsync_are_excused() -> None:
    lines = {one.module: one.line(error=DISK_ERROR) for one in log_statements("critical")}
    assert lines.keys() >= EXCUSED
    assert {module for module, line in lines.items() if re.search(OUT_OF_SERVICE, line)} == EXCUSED


def test_critical_lines_without_an_injected_disk_error_are_bugs() -> None:
    lines = [one.line(error="CRC mismatch") for one in log_statements("critical")]
    assert lines
    assert all(BUGS.search(line) for line in lines)
    assert not any(re.search(OUT_OF_SERVICE, line) for line in lines)


def test_a_background_task_that_died_is_a_bug() -> None:
    assert BUGS.search(BackgroundTaskDied.__name__)
