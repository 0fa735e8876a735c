"""The report of a run: Markdown for people, JSON for the rest."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.chaos.availability import Stay
from tests.chaos.faults import Injected, leaves_majority
from tests.chaos.outcome import Options, Outcome

ROOT = Path(__file__).parents[2]
BAR_SECONDS = 10
CHECKS = (
    "every acknowledged record is in the log, at the offset that was told, once, in the order of sending",
    "nobody was given a record that was never sent, or another one for the same offset, or was taken back or past one",
    "a group's offsets never went back behind an acknowledged commit, and no record was skipped",
    "all this also holds for Kafka's own Java producer and consumers, if they took part",
    "the copies made in transactions are the source, each once, and nothing of what was aborted",
    "the rows that a Spark query copied are its source, each once, if it took part",
    "every acknowledged message of the queue was delivered and acked, or is a dead letter, once, as are all rejected",
    "no message was delivered after its ack or reject was answered, and no ack was taken after its lease had ended",
    "a message that is due later came once, not before its time, and not at all if it was cancelled",
    "the same of the queue behind two gateways that were killed and stopped",
    "every acknowledged record of the share group was delivered and accepted, or is a dead letter",
    "no record was delivered again after a confirmed accept or reject; released ones were, up to the delivery limit",
    "every confirmed operation of the administrator was in force after the healing, as each broker described it",
    "writers, reader, group, copiers and workers came to their ends after the healing, and all replicas were in sync",
    "the replicas on the disks are equal byte for byte, and every file is sound (`headrace log verify`)",
    "every log that was damaged while its broker was down was quarantined and copied again from the others",
    "no broker logged a traceback or an assertion",
    "writes went on in every round that left a majority",
)


def write(outcome: Outcome, folder: Path, name: str) -> Path:
    """Both files; returns the path of the one for people."""
    folder.mkdir(parents=True, exist_ok=True)
    content = as_json(outcome)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    page = folder / f"{name}.md"
    page.write_text("\n".join(_page(outcome, content)) + "\n")
    return page


def as_json(outcome: Outcome) -> dict[str, Any]:
    options, began = outcome.options, outcome.began
    return {
        "seed": options.seed,
        "commit": _commit(),
        "seconds": round(outcome.ended - began, 1),
        "session_timeout_seconds": options.session_seconds,
        "registry": "zookeeper" if options.servers else "sqlite",
        "zookeeper_servers": options.servers,
        "records_per_second_wanted": options.rate,
        "violations": outcome.violations,
        "counts": outcome.counts,
        "impossible": outcome.impossible,
        "left_out": outcome.left_out,
        "rounds": [_round(outcome, faults) for faults in outcome.rounds if faults],
        "events": [[round(moment - began, 1), what] for moment, what in outcome.events],
        "acknowledged_per_second": outcome.acknowledgements.per_second(began, outcome.ended),
    }


def _round(outcome: Outcome, faults: list[Injected]) -> dict[str, Any]:
    stay = outcome.stay(faults)
    return {
        "faults": [
            {
                "kind": fault.planned.kind,
                "role": fault.planned.role,
                "nodes": fault.nodes,
                "began": round(fault.began - outcome.began, 1),
                "healed": round((fault.healed or fault.ends) - outcome.began, 1),
            }
            for fault in faults
        ],
        "leaves_majority": leaves_majority(faults),
        "acknowledged": stay.acknowledged,
        "stall_seconds": round(stay.stall_seconds, 1),
        "partition_stall_seconds": round(stay.partition_stall_seconds, 1),
    }


def _page(outcome: Outcome, content: dict[str, Any]) -> list[str]:
    found = outcome.violations
    verdict = "No violation." if not found else f"{len(found)} violations."
    rounds = content["rounds"]
    summary = (
        f"{verdict} {sum(len(one['faults']) for one in rounds)} faults in {len(rounds)} rounds; "
        f"commit `{content['commit']}`; session timeout {content['session_timeout_seconds']:g} s. Again: "
        f"`{_command(outcome.options)}`."
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
        *(f"| {what} | {count} |" for what, count in outcome.counts.items()),
        "",
        *_availability(outcome),
        "## What was injected",
        "",
        "| from s | to s | fault | to whom | as |",
        "| ---: | ---: | --- | --- | --- |",
        *(
            f"| {one['began']} | {one['healed']} | {one['kind']} | {', '.join(one['nodes'])} | {one['role']} |"
            for one in (fault for each in rounds for fault in each["faults"])
        ),
        "",
    ]
    if missing := outcome.impossible | outcome.left_out:
        lines += ["Not to be had here:", "", *(f"- {kind}: {why}" for kind, why in missing.items()), ""]
    ended = [what for _, what in outcome.events if "by itself" in what]
    if ended:
        lines += ["Started again by the harness:", "", *(f"- {what}" for what in ended), ""]
    return lines


def _command(options: Options) -> str:
    """What runs the same schedule again."""
    words = ["python -m tests.chaos", f"--minutes {options.seconds / 60:g}", f"--seed {options.seed}"]
    words += [] if options.servers else ["--registry sqlite"]
    words += ["--kinds", *map(shlex.quote, options.kinds)] if options.kinds else []
    return " ".join(words)


def _availability(outcome: Outcome) -> list[str]:
    by_kind = defaultdict[str, list[tuple[Stay, bool]]](list)
    for faults in outcome.rounds:
        if faults:
            name = faults[0].planned.kind if len(faults) == 1 else f"{len(faults)} at a time"
            by_kind[name].append((outcome.stay(faults), leaves_majority(faults)))
    series = outcome.acknowledgements.per_second(outcome.began, outcome.ended)
    without = sum(count == 0 for count in series)
    bars = [sum(series[at : at + BAR_SECONDS]) / BAR_SECONDS for at in range(0, len(series), BAR_SECONDS)]
    lines = [
        "## How available it was",
        "",
        "A stall is the longest time without an acknowledgement: of any partition, and of the one that fared worst. It",
        "contains what the clients need to notice (they give up a silent broker after 4 to 5 s).",
        "",
        "| fault | rounds | left a majority | sends acknowledged meanwhile | longest stall, s | of one partition, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, stays in sorted(by_kind.items()):
        sends = sum(stay.acknowledged for stay, _ in stays)
        stall = max(stay.stall_seconds for stay, _ in stays)
        worst = max(stay.partition_stall_seconds for stay, _ in stays)
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
