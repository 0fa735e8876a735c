"""Report the results: tables of medians and ratios, targets met and missed, and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from bench.figures import Metric, Spread, ratio, spread
from bench.peers.peer import Peer
from bench.schedule import WorkloadResult
from bench.targets import Verdict, judge


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the benchmark, as it is reported."""

    date: str
    command: str
    rounds: int
    scale: float
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    results: Sequence[WorkloadResult]
    peers: Mapping[str, Peer]


def as_markdown(run: Run, plot: str) -> str:
    tables = [result_section(result, run.peers) for result in run.results]
    return "\n".join([f"# {run.date}: {run.command}\n", summary(run), f"![plot]({plot})\n", *tables])


def summary(run: Run) -> str:
    """Return the machine, the versions, and which targets were met."""
    verdicts = judge({result.workload.name: result.samples for result in run.results})
    return _head(run) + ("\n" + _verdict_table(verdicts) if verdicts else "")


def as_json(run: Run) -> str:
    verdicts = judge({result.workload.name: result.samples for result in run.results})
    document = {
        "date": run.date,
        "command": run.command,
        "rounds": run.rounds,
        "scale": run.scale,
        "machine": dict(run.machine),
        "versions": dict(run.versions),
        "missing": dict(run.missing),
        "workloads": {
            result.workload.name: {
                "title": result.workload.title,
                "failures": result.failures,
                "samples": [asdict(sample) for sample in result.samples],
            }
            for result in run.results
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


def result_section(result: WorkloadResult, peers: Mapping[str, Peer]) -> str:
    parts = [f"## {result.workload.name}: {result.workload.title}\n"]
    measured = [name for name in peers if any(sample.peer == name for sample in result.samples)]
    pairs = list(comparisons(measured, peers))
    if result.workload.points == (None,):
        parts.append(_bar_table(result, measured, pairs))
    else:
        parts += [_line_table(result, metric, measured, pairs) for metric in result.workload.metrics[:1]]
    parts += [f"{name} failed: {failure}\n" for name, failure in result.failures.items()]
    return "\n".join(parts)


def comparisons(measured: Sequence[str], peers: Mapping[str, Peer]) -> list[tuple[str, str]]:
    """Pair each peer with the most similar configuration of Headrace: the same number of brokers, then the same way to
    consume, then the same durability. A cluster of Headrace is also compared with a single broker."""
    ours = [name for name in measured if name.startswith("headrace") and "@" not in name]
    alone = [name for name in ours if peers[name].brokers == 1]

    def differences(own: str, other: str) -> tuple[bool, ...]:
        return tuple(
            getattr(peers[own], trait) != getattr(peers[other], trait) for trait in ("brokers", "consumes", "flushes")
        )

    pairs = []
    for name in measured:
        if name in ours and peers[name].brokers > 1 and alone:
            pairs.append((name, min(alone, key=partial(differences, name))))
        elif name not in ours and ours:
            pairs.append((min(ours, key=partial(differences, name)), name))
    return pairs


def _head(run: Run) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    versions = ", ".join(f"{name}: {value}" for name, value in run.versions.items())
    missing = "; ".join(f"{name} ({why})" for name, why in run.missing.items()) or "none"
    rounds = f"{run.rounds} rounds, peers alternating; load times {run.scale:g}"
    return (
        f"Machine: {machine}.\n\nMeasured: {versions}.\n\nNot measured: {missing}.\n\n{rounds}. "
        "A figure is the median [least .. greatest]; a ratio is the median of the ratios within rounds. "
        "Load and server share the machine.\n"
    )


def _verdict_table(verdicts: Sequence[Verdict]) -> str:
    rows = [
        [v.target.workload, v.target.what, v.target.wanted, f"{v.value:.3g}", "yes" if v.met else "**no**"]
        for v in verdicts
    ]
    return "## Targets\n\n" + _table(["workload", "what", "wanted", "measured", "met"], rows)


def _bar_table(result: WorkloadResult, measured: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    metrics = result.workload.metrics
    rows = [
        [name, *(_cell(spread(result.samples, name, metric.key), metric.digits) for metric in metrics)]
        for name in measured
    ]
    rows += [
        [
            f"**{own} ÷ {other}**",
            *(_cell(ratio(result.samples, own, other, metric.key), 2) for metric in metrics),
        ]
        for own, other in pairs
    ]
    return _table(["", *(f"{metric.title} ({_arrow(metric)})" for metric in metrics)], rows)


def _line_table(
    result: WorkloadResult, metric: Metric, measured: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> str:
    samples, points = result.samples, result.workload.points
    rows = [
        [
            name,
            *(_cell(spread(samples, name, metric.key, point), metric.digits) for point in points),
            _growth(result, name),
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
    headings = [f"{point:,}" for point in points if point is not None]
    return f"{metric.title} ({_arrow(metric)}) by {result.workload.x_title}:\n\n" + _table(
        ["", *headings, "last ÷ first"], rows
    )


def _growth(result: WorkloadResult, name: str) -> str:
    key, points = result.workload.metrics[0].key, result.workload.points
    first, last = (spread(result.samples, name, key, point) for point in (points[0], points[-1]))
    return f"{last.median / first.median:.2f}" if first and last and first.median else ""


def _cell(found: Spread | None, digits: int) -> str:
    if found is None:
        return "-"
    return f"{found.median:,.{digits}f} [{found.least:,.{digits}f} .. {found.greatest:,.{digits}f}]"


def _arrow(metric: Metric) -> str:
    return "↑" if metric.better == "higher" else "↓"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned for reading in a terminal."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]
    ]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "".join(f"| {line} |\n" for line in lines)
