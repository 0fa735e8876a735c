"""`headrace doctor`: check whether this machine is suitable for a broker, and whether the broker is healthy.

Every check prints one line with ok, warn or fail, and the next step unless it is ok. The exit code is 0 if no check
failed, 3 if only the broker was unreachable, and 1 otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import click

from headrace.cli.checkup import (
    CheckResult,
    check_broker,
    check_clock,
    check_data,
    check_descriptors,
    check_port,
    check_strays,
)
from headrace.cli.failure import FAILED, UNREACHABLE
from headrace.cli.output import echo, output_option, print_json, wants_json
from headrace.cli.session import run, server_option
from headrace.client.connections.address import Address, parse_address

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--data", metavar="DIR", default="headrace-data", show_default=True, help="The broker's data folder.")
@click.option(
    "--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="The broker's HTTP address."
)
@server_option
@output_option
def doctor(data: str, http: str, server: str, output: str | None) -> int:
    """Check this machine and the broker, and suggest fixes.

    Checks the data folder (permissions, free space, fsync latency), the limit of open files, the clock, the ports,
    whether the broker responds, its API versions, and whether the addresses that brokers advertise are reachable.
    """
    try:
        http_address = parse_address(http, 8080)
    except ValueError as error:
        raise click.UsageError(f"--http: {error}") from None
    findings = run(_run_checks(data, http_address, server))
    if wants_json(output):
        print_json(_row(finding) for finding in findings)
    else:
        for finding in findings:
            _print(finding)
    return _exit_code(findings)


async def _run_checks(data: str, http: Address, server: str) -> list[CheckResult]:
    findings = [*check_data(data), *check_strays(data), check_descriptors(), check_clock()]
    broker = await check_broker(server)
    findings += broker
    answered = broker[0].verdict != "fail"
    if not answered:
        kafka = parse_address(server.split(",", maxsplit=1)[0])
        findings += [await check_port("kafka port", kafka), await check_port("http port", http)]
    return findings


def _print(finding: CheckResult) -> None:
    verdict = f"{finding.verdict:<4}"
    if "NO_COLOR" not in os.environ:
        verdict = click.style(verdict, fg=_COLOURS[finding.verdict])
    step = f"; {finding.next_step}" if finding.next_step else ""
    echo(f"{verdict}  {finding.subject}: {finding.what}{step}")


def _row(finding: CheckResult) -> dict[str, Any]:
    return {
        "verdict": finding.verdict,
        "subject": finding.subject,
        "what": finding.what,
        "next_step": finding.next_step,
    }


def _exit_code(findings: Iterable[CheckResult]) -> int:
    failed = {finding.subject for finding in findings if finding.verdict == "fail"}
    if not failed:
        return 0
    return UNREACHABLE if failed == {"broker"} else FAILED
