"""The report of a run, as Markdown and JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.chaos.availability import RoundAvailability
from tests.chaos.faults import InjectedFault, leaves_majority
from tests.chaos.run_result import Options, RunResult

ROOT = Path(__file__).parents[2]
BAR_SECONDS = 10
CHECKS = (
    "every acknowledged record is in the log once, at the acknowledged offset, in the order of sending",
    "no reader received a record that was never sent or two records for one offset, went back, or skipped a record",
    "a group's offsets never went back behind a confirmed commit, and no record was skipped",
    "the same for Kafka's Java producer and consumers, if they took part",
    "the copies made in transactions equal the source, each record once, without aborted records",
    "the rows that a Spark query copied equal its source, each row once, if it took part",
    "every acknowledged message of the queue was delivered and acked, or is a dead letter, once; rejected ones are",
    "no message was delivered after its ack or reject was confirmed, and no ack was accepted after its lease ended",
    "a delayed message was delivered once, not before its time, and not at all if it was cancelled",
    "the same for the queue behind two gateways that were killed and stopped",
    "every acknowledged record of the share group was delivered and accepted, or is a dead letter",
    "no record was delivered again after a confirmed accept or reject; released ones were, up to the delivery limit",
    "every confirmed operation of the administrator was in effect after the healing, as each broker described it",
    "writers, reader, group, copiers and workers finished after the healing, and all replicas were in sync",
    "the replicas on the disks are equal byte for byte, and every file is intact (`headrace log verify`)",
    "every log that was damaged while its broker was down was quarantined and replicated again",
    "no broker logged a traceback or an assertion",
    "writes continued in every round that left a majority",
)


def write(result: RunResult, folder: Path, name: str) -> Path:
    """Write both files; return the path of the Markdown page."""
    folder.mkdir(parents=True, exist_ok=True)
    content = as_json(result)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    page = folder / f"{name}.md"
    page.write_text("\n".join(_page(result, content)) + "\n")
    return page


def as_json(result: RunResult) -> dict[str, Any]:
    options, began = result.options, result.began
    return {
        "seed": options.seed,
        "commit": _commit(),
        "seconds": round(result.ended - began, 1),
        "session_timeout_seconds": options.session_seconds,
        "registry": "zookeeper" if options.servers else "sqlite",
        "zookeeper_servers": options.servers,
        "records_per_second_wanted": options.rate,
        "violations": result.violations,
        "counts": result.counts,
        "impossible": result.impossible,
        "left_out": result.left_out,
        "rounds": [_round(result, faults) for faults in result.rounds if faults],
        "events": [[round(moment - began, 1), what] for moment, what in result.events],
        "acknowledged_per_second": result.acknowledgements.per_second(began, result.ended),
    }


def _round(result: RunResult, faults: list[InjectedFault]) -> dict[str, Any]:
    availability = result.availability(faults)
    return {
        "faults": [
            {
                "kind": fault.planned.kind,
                "role": fault.planned.role,
                "nodes": fault.nodes,
                "began": round(fault.began - result.began, 1),
                "healed": round((fault.healed or fault.ends) - result.began, 1),
            }
            for fault in faults
        ],
        "leaves_majority": leaves_majority(faults),
        "acknowledged": availability.acknowledged,
        "stall_seconds": round(availability.stall_seconds, 1),
        "partition_stall_seconds": round(availability.partition_stall_seconds, 1),
    }


def _page(result: RunResult, content: dict[str, Any]) -> list[str]:
    found = result.violations
    verdict = "No violation." if not found else f"{len(found)} violations."
    rounds = content["rounds"]
    summary = (
        f"{verdict} {sum(len(one['faults']) for one in rounds)} faults in {len(rounds)} rounds; "
        f"commit `{content['commit']}`; session timeout {content['session_timeout_seconds']:g} s. Repeat with: "
        f"`{_command(result.options)}`."
    )
    lines = [
        f"# Chaos: {content['seconds'] / 60:.0f} minutes, seed {content['seed']}",
        "",
        summary,
        "",
        *(f"- {line}" for line in found),
        *([""] if found else []),
        "## Checked",
        "",
        *(f"- {check}" for check in CHECKS),
        "",
        "| what | count |",
        "| --- | ---: |",
        *(f"| {what} | {count} |" for what, count in result.counts.items()),
        "",
        *_availability(result),
        "## Faults",
        "",
        "| from s | to s | fault | node | role |",
        "| ---: | ---: | --- | --- | --- |",
        *(
            f"| {one['began']} | {one['healed']} | {one['kind']} | {', '.join(one['nodes'])} | {one['role']} |"
            for one in (fault for each in rounds for fault in each["faults"])
        ),
        "",
    ]
    if missing := result.impossible | result.left_out:
        lines += ["Not possible on this machine:", "", *(f"- {kind}: {why}" for kind, why in missing.items()), ""]
    ended = [what for _, what in result.events if "by itself" in what]
    if ended:
        lines += ["Restarted by the harness:", "", *(f"- {what}" for what in ended), ""]
    return lines


def _command(options: Options) -> str:
    """Return the command that repeats the schedule."""
    words = ["python -m tests.chaos", f"--minutes {options.seconds / 60:g}", f"--seed {options.seed}"]
    words += [] if options.servers else ["--registry sqlite"]
    words += ["--kinds", *map(shlex.quote, options.kinds)] if options.kinds else []
    return " ".join(words)


def _availability(result: RunResult) -> list[str]:
    by_kind = defaultdict[str, list[tuple[RoundAvailability, bool]]](list)
    for faults in result.rounds:
        if faults:
            name = faults[0].planned.kind if len(faults) == 1 else f"{len(faults)} at a time"
            by_kind[name].append((result.availability(faults), leaves_majority(faults)))
    series = result.acknowledgements.per_second(result.began, result.ended)
    without = sum(count == 0 for count in series)
    bars = [sum(series[at : at + BAR_SECONDS]) / BAR_SECONDS for at in range(0, len(series), BAR_SECONDS)]
    lines = [
        "## Availability",
        "",
        "A stall is the longest time without an acknowledgement, of all partitions and of the worst one. It includes",
        "the time in which clients detect a broker that does not respond (4 to 5 s).",
        "",
        "| fault | rounds | left a majority | sends acknowledged in them | longest stall, s | of one partition, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, stays in sorted(by_kind.items()):
        sends = sum(availability.acknowledged for availability, _ in stays)
        stall = max(availability.stall_seconds for availability, _ in stays)
        worst = max(availability.partition_stall_seconds for availability, _ in stays)
        majority = sum(leaves for _, leaves in stays)
        lines.append(f"| {kind} | {len(stays)} | {majority} | {sends} | {stall:.1f} | {worst:.1f} |")
    return [
        *lines,
        "",
        f"Seconds without any acknowledgement: {without} of {len(series)}.",
        f"Acknowledged per second, each figure the mean of {BAR_SECONDS} s:",
        "",
        "```",
        *(" ".join(f"{bar:4.0f}" for bar in bars[at : at + 20]) for at in range(0, len(bars), 20)),
        "```",
        "",
    ]


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"
