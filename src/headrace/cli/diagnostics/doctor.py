"""`headrace doctor`: check whether this machine is suitable for a broker, and whether the broker is healthy.

- A check never raises: it returns every problem as a `CheckResult`.
- Each result is printed as one line with ok, warn or fail, and the next step unless it is ok.
- The exit code is 0 if no check failed, 3 if only the broker was unreachable, and 1 otherwise.
"""

from __future__ import annotations

import os
import resource
import statistics
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

import click

from headrace.cli.cluster.health import WITHOUT_SESSION
from headrace.cli.cluster_client import run
from headrace.cli.failure import FAILED, UNREACHABLE
from headrace.cli.options import server_option
from headrace.cli.output import counted, echo, output_option, print_json, wants_json
from headrace.client.admin.cluster_admin import BrokerState, ClusterAdmin
from headrace.client.cluster import ClientSettings, Cluster, connect
from headrace.client.connections.address import Address, parse_address, parse_addresses
from headrace.client.connections.transport import Transport
from headrace.model.errors import HeadraceError
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.disk import Disk, SystemDisk
from headrace.runtime.network import SystemNetwork
from headrace.storage.store.stray_logs import STRAY, measure_strays
from headrace.wire.apis import APIS, OWN_KEYS

_FREE_BYTES_MIN = 1 << 30
_FREE_SHARE_MIN = 0.1
_FSYNC_SLOW_MS = 20.0
_FSYNC_TRIES = 15
_DESCRIPTORS_MIN = 4096
_RELEASED_IN = 2026


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check, and the next step unless the verdict is ok."""

    verdict: Literal["ok", "warn", "fail"]
    subject: str
    what: str
    next_step: str | None = None


def check_data(folder: str, disk: Disk | None = None, clock: Clock | None = None) -> list[CheckResult]:
    """Check that the folder is writable, its free space, and the latency of an fsync."""
    disk = disk or SystemDisk()
    clock = clock or SystemClock()
    existing = folder
    while not disk.exists(existing):
        existing = os.path.dirname(os.path.abspath(existing))
    probe = os.path.join(existing, ".headrace-doctor")
    try:
        milliseconds = _fsync_milliseconds(disk, clock, probe)
    except (HeadraceError, OSError) as error:
        return [
            CheckResult(
                "fail",
                "data folder",
                f"cannot write to {existing}: {error}",
                "choose another folder with --data, or grant this user write permission",
            )
        ]
    return [
        CheckResult("ok", "data folder", f"{existing} is writable"),
        _check_space(existing, disk.free_bytes(existing), disk.total_bytes(existing)),
        _check_fsync(milliseconds),
    ]


def check_strays(folder: str) -> list[CheckResult]:
    """Check for logs that are not in the registry; the broker keeps them until an operator adopts or purges them."""
    disk = SystemDisk()
    folders = [folder, *(f"{folder}/{name}" for name in (disk.list(folder) if disk.exists(folder) else ()))]
    sizes = [measure_strays(disk, one) for one in folders if disk.exists(f"{one}/{STRAY}")]
    logs, size_bytes = sum(size.logs for size in sizes), sum(size.size_bytes for size in sizes)
    if not logs:
        return []
    what = f"{counted(logs, 'log')} ({size_bytes / 1e6:.1f} MB) in {STRAY}, not in the registry"
    step = "list them with `headrace log stray`, then use `headrace log adopt` or `headrace log purge-stray`"
    return [CheckResult("warn", "stray logs", what, step)]


def check_descriptors() -> CheckResult:
    """Check the limit of open files, which connections and log files share; the broker raises it to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard >= _DESCRIPTORS_MIN:
        return CheckResult("ok", "open files", f"up to {hard} (now {soft})")
    return CheckResult(
        "warn",
        "open files",
        f"the limit is only {hard}",
        f"raise it: ulimit -Hn {_DESCRIPTORS_MIN}, or LimitNOFILE= in systemd",
    )


def check_clock(clock: Clock | None = None) -> CheckResult:
    """Check the wall clock, on which retention and timestamps depend."""
    now = datetime.fromtimestamp((clock or SystemClock()).now_ms() / 1000, UTC)
    if now.year < _RELEASED_IN:
        return CheckResult(
            "fail", "clock", f"the time is {now:%Y-%m-%d %H:%M} UTC", "set the clock, for example with NTP"
        )
    return CheckResult("ok", "clock", f"{now:%Y-%m-%d %H:%M:%S} UTC")


async def check_port(subject: str, address: Address) -> CheckResult:
    """Check whether a broker could listen on the address."""
    try:
        listener = await SystemNetwork().listen(*address, lambda stream: stream.close())
    except OSError as error:
        return CheckResult(
            "warn", subject, f"cannot listen on {address}: {error.strerror or error}", "choose another port"
        )
    listener.close()
    return CheckResult("ok", subject, f"{address} is free")


async def check_broker(server: str) -> list[CheckResult]:
    """Check that the broker responds, its API versions, that every broker's advertised address is reachable, and that
    every broker reaches the registry."""
    address = ",".join(map(str, parse_addresses(server)))
    async with connect(server, ClientSettings(client_id="headrace-doctor")) as cluster:
        try:
            view = await cluster.refresh([])
            transport = await cluster.any_transport()
        except HeadraceError as error:
            step = "start a broker with `headrace serve`, or specify another one with --server HOST:PORT"
            return [CheckResult("fail", "broker", error.message, step)]
        results = [
            CheckResult(
                "ok", "broker", f"{address} responds; cluster {view.cluster_id}, {counted(len(view.nodes), 'broker')}"
            ),
            _check_versions(transport),
        ]
        states = await ClusterAdmin(cluster).broker_states(sorted(view.nodes))
        results += [await _check_member(cluster, node_id, state) for node_id, state in states.items()]
    return results


async def _check_member(cluster: Cluster, node_id: int, state: BrokerState) -> CheckResult:
    address = cluster.view.nodes[node_id]
    subject = f"broker {node_id}"
    try:
        await cluster.transport(node_id, "doctor")
    except HeadraceError:
        return CheckResult(
            "fail",
            subject,
            f"advertises {address}, which is not reachable from here",
            "start it with an address that clients can reach: --advertised HOST:PORT",
        )
    if state is BrokerState.WITHOUT_SESSION:
        return CheckResult("fail", subject, *WITHOUT_SESSION)
    if state is BrokerState.UNREACHABLE:
        return CheckResult(
            "fail", subject, f"accepts connections on {address}, but does not respond", "see its log, or restart it"
        )
    return CheckResult("ok", subject, f"advertises {address}, which is reachable")


def _check_versions(transport: Transport) -> CheckResult:
    # Other brokers do not need to support Headrace's own requests, from 10000 on.
    missing = [api.name for api in APIS.values() if api.key not in transport.versions and api.key < OWN_KEYS]
    too_old = [
        api.name
        for api in APIS.values()
        if api.key in transport.versions and transport.versions[api.key].high < api.min_version
    ]
    if too_old:
        return CheckResult("fail", "versions", f"the broker is too old for {', '.join(too_old)}", "upgrade the broker")
    if missing:
        return CheckResult(
            "warn", "versions", f"the broker does not support {', '.join(missing)}", "upgrade the broker"
        )
    return CheckResult("ok", "versions", f"the broker supports all {len(APIS)} requests of this client")


def _check_space(folder: str, free: int, total: int) -> CheckResult:
    what = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free at {folder}"
    if free < _FREE_BYTES_MIN or free < total * _FREE_SHARE_MIN:
        return CheckResult("warn", "space", what, "free space or shorten retention: a nearly full disk rejects writes")
    return CheckResult("ok", "space", what)


def _check_fsync(milliseconds: float) -> CheckResult:
    what = f"{milliseconds:.2f} ms (median of {_FSYNC_TRIES})"
    if milliseconds > _FSYNC_SLOW_MS:
        return CheckResult("warn", "fsync", what, "use a faster disk: every acknowledged write waits for an fsync")
    return CheckResult("ok", "fsync", what)


def _fsync_milliseconds(disk: Disk, clock: Clock, path: str) -> float:
    file = disk.open(path, create=True)
    try:
        times = []
        for _ in range(_FSYNC_TRIES):
            file.append([bytes(4096)])
            began = clock.monotonic()
            file.sync()
            times.append(clock.monotonic() - began)
        return statistics.median(times) * 1000
    finally:
        file.close()
        disk.remove(path)


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
    whether the broker responds, its API versions, and whether brokers are reachable and reach the registry.
    """
    try:
        http_address = parse_address(http, 8080)
    except ValueError as error:
        raise click.UsageError(f"--http: {error}") from None
    results = run(_run_checks(data, http_address, server))
    if wants_json(output):
        print_json(map(asdict, results))
    else:
        for result in results:
            _print(result)
    failed = {result.subject for result in results if result.verdict == "fail"}
    return 0 if not failed else UNREACHABLE if failed == {"broker"} else FAILED


async def _run_checks(data: str, http: Address, server: str) -> list[CheckResult]:
    results = [*check_data(data), *check_strays(data), check_descriptors(), check_clock()]
    broker = await check_broker(server)
    results += broker
    is_reachable = broker[0].verdict != "fail"
    if not is_reachable:
        kafka = parse_address(server.split(",", maxsplit=1)[0])
        results += [await check_port("kafka port", kafka), await check_port("http port", http)]
    return results


def _print(result: CheckResult) -> None:
    verdict = f"{result.verdict:<4}"
    if "NO_COLOR" not in os.environ:
        verdict = click.style(verdict, fg=_COLOURS[result.verdict])
    step = f"; {result.next_step}" if result.next_step else ""
    echo(f"{verdict}  {result.subject}: {result.what}{step}")
