"""What must not be found after a run. Each function returns one sentence for each thing that is wrong."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tests.chaos.cluster import Cluster
from tests.chaos.faults import leaves_majority
from tests.chaos.outcome import Outcome, span
from tests.chaos.transcript import Log, Transcript, history_of
from tests.chaos.workload import GROUP, MEMBERS, NUMBERS, SOURCE, WRITERS
from tests.compat.copier import ABORTED

from headrace.testkit.anomalies import judge

SHOWN_MAX = 5
"""Of each kind; the first bug of a run makes many."""
BUGS = re.compile(r"Traceback|AssertionError|BackgroundTaskDied|never retrieved|never awaited|CRITICAL")
MUST_WRITE_AFTER_SESSIONS = 3
"""A round that lasts so many session timeouts and leaves a majority must let writes through."""


def of_history(transcripts: Mapping[str, Transcript], final: Mapping[str, Mapping[int, Log]]) -> list[str]:
    """Lost, doubled, reordered, never sent, taken back, skipped: all the rules of the simulation."""
    found = list[str]()
    for topic in (NUMBERS, SOURCE):
        clients = {name: transcript for name, transcript in transcripts.items() if WRITERS.get(name, NUMBERS) == topic}
        history = history_of(clients, dict.fromkeys(MEMBERS, GROUP), final[topic])
        anomalies = defaultdict[str, list[str]](list)
        for anomaly in judge(history):
            anomalies[anomaly.kind].append(f"{anomaly} of {topic}")
        for kind, sentences in anomalies.items():
            found += few(sentences, kind)
    found += [f"{name} broke off before it was told to" for name, one in transcripts.items() if not one.is_complete]
    found += [
        f"{name}: {error}"
        for name in WRITERS
        for error in transcripts[name].errors  # a writer tells only of what it could not bring to its end
    ]
    return found


def of_copies(source: Sequence[bytes], copies: Sequence[bytes]) -> list[str]:
    """Exactly once: the copies are the source, whatever became of the copiers."""
    wanted, got = Counter(source), Counter(copies)
    aborted = [value for value in got if value.startswith(ABORTED)]
    doubled = [value for value in got - wanted if value not in aborted]
    return [
        *few([f"aborted read: {one!r} is among the committed copies" for one in aborted], "aborted read"),
        *few([f"copy lost: {one!r} of the source is not among the copies" for one in wanted - got], "copy lost"),
        *few(
            [f"copied {got[one]} times: {one!r}, {wanted[one]} times in the source" for one in doubled], "copied twice"
        ),
    ]


def of_logs(cluster: Cluster) -> list[str]:
    """Bugs that the brokers told of themselves."""
    found = list[str]()
    for broker in cluster.brokers:
        if not broker.log_path.exists():
            continue
        lines = enumerate(broker.log_path.read_text(errors="replace").splitlines(), 1)
        told = [f"{broker.log_path}:{number}: {line}" for number, line in lines if BUGS.search(line)]
        found += few(told, f"line in the log of {broker.name}")
    return found


def of_availability(outcome: Outcome) -> list[str]:
    """Whatever leaves a majority of brokers and of the registry alone must not stop all writes for long."""
    found = []
    for number, faults in enumerate(outcome.rounds, 1):
        if not faults or not leaves_majority(faults):
            continue
        began, ended = span(faults)
        if ended - began < MUST_WRITE_AFTER_SESSIONS * outcome.options.session_seconds:
            continue
        if outcome.stay(faults).acknowledged == 0:
            titles = " and ".join(fault.title for fault in faults)
            found.append(f"unavailable: nothing was acknowledged in {ended - began:.0f} s of round {number}, {titles}")
    return found


def few(found: list[str], kind: str) -> list[str]:
    """The first of them, and how many more there are."""
    left_out = len(found) - SHOWN_MAX
    return found if left_out <= 0 else [*found[:SHOWN_MAX], f"{kind}: and {left_out} more"]
