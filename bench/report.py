"""The tables: medians with their spread, ratios within rounds, targets met and missed; and the JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from bench.figures import Metric, Spread, ratio, spread
from bench.peers.peer import Peer
from bench.schedule import Outcome
from bench.targets import Verdict, judge


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the harness, as it is written down."""

    date: str
    command: str
    rounds: int
    scale: float
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    outcomes: Sequence[Outcome]
    peers: Mapping[str, Peer]


def as_markdown(run: Run, plot: str) -> str:
    tables = [outcome_section(outcome, run.peers) for outcome in run.outcomes]
    return "\n".join([f"# {run.date}: {run.command}\n", summary(run), f"![plot]({plot})\n", *tables])


def summary(run: Run) -> str:
    """What was measured where, and which targets were met."""
    verdicts = judge({outcome.workload.name: outcome.samples for outcome in run.outcomes})
    return _head(run) + ("\n" + _verdict_table(verdicts) if verdicts else "")


def as_json(run: Run) -> str:
    verdicts = judge({outcome.workload.name: outcome.samples for outcome in run.outcomes})
    document = {
        "date": run.date,
        "command": run.command,
        "rounds": run.rounds,
        "scale": run.scale,
        "machine": dict(run.machine),
        "versions": dict(run.versions),
        "missing": dict(run.missing),
        "workloads": {
            outcome.workload.name: {
                "title": outcome.workload.title,
                "failures": outcome.failures,
                "samples": [asdict(sample) for sample in outcome.samples],
            }
            for outcome in run.outcomes
        },
        "targets": [
            {
                "workload": v.target.workload,
                "what": v.target.what,
                "wanted": v.target.wanted,
                "measured": v.value,
            }
            | {"met": v.met}
            for v in verdicts
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def outcome_section(outcome: Outcome, peers: Mapping[str, Peer]) -> str:
    parts = [f"## {outcome.workload.name}: {outcome.workload.title}\n"]
    measured = [name for name in peers if any(sample.peer == name for sample in outcome.samples)]
    pairs = list(comparisons(measured, peers))
    if outcome.workload.points == (None,):
        parts.append(_bar_table(outcome, measured, pairs))
    else:
        parts += [_line_table(outcome, metric, measured, pairs) for metric in outcome.workload.metrics[:1]]
    parts += [f"{name} failed: {failure}\n" for name, failure in outcome.failures.items()]
    return "\n".join(parts)


def comparisons(measured: Sequence[str], peers: Mapping[str, Peer]) -> list[tuple[str, str]]:
    """Each peer against the Headrace that is most like it: of as many brokers, consumed alike, then as durable.

    A cluster of ours is compared with one broker of ours as well.
    """
    ours = [name for name in measured if name.startswith("headrace") and "@" not in name]
    alone = [name for name in ours if peers[name].brokers == 1]

    def diverged_partitions(own: str, other: str) -> tuple[bool, ...]:
        return tuple(
            getattr(peers[own], trait) != getattr(peers[other], trait) for trait in ("brokers", "consumes", "flushes")
        )

    pairs = []
    for name in measured:
        if name in ours and peers[name].brokers > 1 and alone:
            pairs.append((name, min(alone, key=partial(diverged_partitions, name))))
        elif name not in ours and ours:
            pairs.append((min(ours, key=partial(diverged_partitions, name)), name))
    return pairs


def _head(run: Run) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    versions = ", ".join(f"{name}: {value}" for name, value in run.versions.items())
    missing = "; ".join(f"{name} ({why})" for name, why in run.missing.items()) or "none"
    turns = f"{run.rounds} rounds, peers in turn; load times {run.scale:g}"
    return (
        f"Machine: {machine}.\n\nMeasured: {versions}.\n\nNot measured: {missing}.\n\n{turns}. "
        "A figure is the median [least .. greatest]; a ratio is the median of the ratios within rounds. "
        "Load and server share the machine.\n"
    )


def _verdict_table(verdicts: Sequence[Verdict]) -> str:
    rows = [
        [v.target.workload, v.target.what, v.target.wanted, f"{v.value:.3g}", "yes" if v.met else "**no**"]
        for v in verdicts
    ]
    return "## Targets\n\n" + _table(["workload", "what", "wanted", "measured", "met"], rows)


def _bar_table(outcome: Outcome, measured: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    metrics = outcome.workload.metrics
    rows = [
        [name, *(_cell(spread(outcome.samples, name, metric.key), metric.digits) for metric in metrics)]
        for name in measured
    ]
    rows += [
        [
            f"**{own} ÷ {other}**",
            *(_cell(ratio(outcome.samples, own, other, metric.key), 2) for metric in metrics),
        ]
        for own, other in pairs
    ]
    return _table(["", *(f"{metric.title} ({_arrow(metric)})" for metric in metrics)], rows)


def _line_table(outcome: Outcome, metric: Metric, measured: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    samples, points = outcome.samples, outcome.workload.points
    rows = [
        [
            name,
            *(_cell(spread(samples, name, metric.key, point), metric.digits) for point in points),
            _growth(outcome, name),
        ]
        for name in measured
    ]
    rows += [
        [
            f"**{own} ÷ {other}**",
            *(_cell(ratio(samples, own, other, metric.key, point), 2) for point in points),
            "",
        ]
        for own, other in pairs
    ]
    heads = [f"{point:,}" for point in points if point is not None]
    return f"{metric.title} ({_arrow(metric)}) by {outcome.workload.x_title}:\n\n" + _table(
        ["", *heads, "last ÷ first"], rows
    )


def _growth(outcome: Outcome, name: str) -> str:
    key, points = outcome.workload.metrics[0].key, outcome.workload.points
    first, last = (spread(outcome.samples, name, key, point) for point in (points[0], points[-1]))
    return f"{last.median / first.median:.2f}" if first and last and first.median else ""


def _cell(found: Spread | None, digits: int) -> str:
    if found is None:
        return "-"
    return f"{found.median:,.{digits}f} [{found.least:,.{digits}f} .. {found.greatest:,.{digits}f}]"


def _arrow(metric: Metric) -> str:
    return "↑" if metric.better == "higher" else "↓"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Padded, so that it can be read in a terminal as well."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "".join(f"| {line} |\n" for line in lines)
