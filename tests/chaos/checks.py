"""Checks after a run. Each function returns one sentence for each violation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.chaos.cluster import Cluster
from tests.chaos.faults import leaves_majority
from tests.chaos.names import GROUP, MEMBERS, NUMBERS, SOURCE, WRITERS
from tests.chaos.nodes import Node
from tests.chaos.run_result import RunResult, span
from tests.chaos.transcript import Log, Transcript, history_of
from tests.compat.copier import ABORTED

from headrace.testkit.anomalies import find_anomalies

SHOWN_MAX = 5
"""The number of violations shown of each kind; one bug causes many."""
BUGS = re.compile(r"Traceback|AssertionError|BackgroundTaskDied|never retrieved|never awaited|CRITICAL")
MUST_WRITE_AFTER_SESSIONS = 3
"""A round that leaves a majority and lasts this many session timeouts must let writes through."""


def check_history(transcripts: Mapping[str, Transcript], final: Mapping[str, Mapping[int, Log]]) -> list[str]:
    """Check the streams by the rules of the simulation: records lost, duplicated, reordered, invented, retracted,
    skipped."""
    found = list[str]()
    for topic in (NUMBERS, SOURCE):
        clients = {name: transcript for name, transcript in transcripts.items() if WRITERS.get(name, NUMBERS) == topic}
        found += check_topic(topic, clients, dict.fromkeys(MEMBERS, GROUP), final[topic])
    return found + check_clients(transcripts, WRITERS)


def check_topic(
    topic: str,
    clients: Mapping[str, Transcript],
    groups: Mapping[str, str],
    final: Mapping[int, Log],
    deleted: Mapping[int, int] | None = None,
) -> list[str]:
    """Check one topic by the rules of the simulation. `deleted`: see `History.deleted`."""
    history = history_of(clients, groups, final)
    history.deleted.update(deleted or {})
    anomalies = defaultdict[str, list[str]](list)
    for anomaly in find_anomalies(history):
        anomalies[anomaly.kind].append(f"{anomaly} of {topic}")
    return [sentence for kind, sentences in anomalies.items() for sentence in first_few(sentences, kind)]


def check_clients(transcripts: Mapping[str, Transcript], writers: Iterable[str]) -> list[str]:
    """Report clients that ended too early, and the errors of writers, which they report only for records given up."""
    return [
        *(f"{name} ended before it was stopped" for name, one in transcripts.items() if not one.is_complete),
        *(f"{name}: {error}" for name in writers for error in first_few(transcripts[name].errors, f"error of {name}")),
    ]


def check_copies(source: Sequence[bytes], copies: Sequence[bytes]) -> list[str]:
    """Check that the copies equal the source, each record once, however often copiers were restarted."""
    wanted, got = Counter(source), Counter(copies)
    aborted = [value for value in got if value.startswith(ABORTED)]
    doubled = [value for value in got - wanted if value not in aborted]
    return [
        *first_few([f"aborted read: {one!r} is among the committed copies" for one in aborted], "aborted read"),
        *first_few([f"copy lost: {one!r} of the source is not among the copies" for one in wanted - got], "copy lost"),
        *first_few(
            [f"copied {got[one]} times: {one!r}, {wanted[one]} times in the source" for one in doubled], "copied twice"
        ),
    ]


def check_logs(cluster: Cluster) -> list[str]:
    """Report bugs in the logs of the brokers."""
    return find_logged_bugs(cluster.broker_processes)


def find_logged_bugs(nodes: Iterable[Node]) -> list[str]:
    found = list[str]()
    for node in nodes:
        if not node.log_path.exists():
            continue
        lines = enumerate(node.log_path.read_text(errors="replace").splitlines(), 1)
        bugs = [(number, line) for number, line in lines if BUGS.search(line) and not node.excuses(line)]
        sentences = [f"{node.log_path}:{number}: {line}" for number, line in bugs]
        found += first_few(sentences, f"line in the log of {node.name}")
    return found


def check_availability(result: RunResult) -> list[str]:
    """A round that leaves a majority of brokers and ZooKeeper servers must not stop all writes for long."""
    found = []
    for number, faults in enumerate(result.rounds, 1):
        if not faults or not leaves_majority(faults):
            continue
        began, ended = span(faults)
        if ended - began < MUST_WRITE_AFTER_SESSIONS * result.options.session_seconds:
            continue
        if result.availability(faults).acknowledged == 0:
            titles = " and ".join(fault.title for fault in faults)
            found.append(f"unavailable: nothing was acknowledged in {ended - began:.0f} s of round {number}, {titles}")
    return found


def first_few(found: list[str], kind: str) -> list[str]:
    """Return the first sentences, and the number of further ones."""
    left_out = len(found) - SHOWN_MAX
    return found if left_out <= 0 else [*found[:SHOWN_MAX], f"{kind}: and {left_out} more"]
