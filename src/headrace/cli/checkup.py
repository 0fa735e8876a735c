"""The checks of `headrace doctor`. Each looks at one thing and never raises: what it finds is a finding."""

from __future__ import annotations

import os
import resource
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from headrace.client.address import Address, parse_addresses
from headrace.client.cluster import ClientSettings, Cluster, connect
from headrace.client.transport import Transport
from headrace.model.errors import HeadraceError
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.disk import Disk, SystemDisk
from headrace.runtime.network import SystemNetwork
from headrace.storage.stray import STRAY, measure_strays
from headrace.wire.apis import APIS, OWN_KEYS

_FREE_BYTES_MIN = 1 << 30
_FREE_SHARE_MIN = 0.1
_FSYNC_SLOW_MS = 20.0
_FSYNC_TRIES = 15
_DESCRIPTORS_MIN = 4096
_RELEASED_IN = 2026


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and the next step unless all is well."""

    verdict: Literal["ok", "warn", "fail"]
    subject: str
    what: str
    next_step: str | None = None


def check_data(folder: str, disk: Disk | None = None, clock: Clock | None = None) -> list[Finding]:
    """Writable, enough space, and how long a small write takes to be safe."""
    disk = disk or SystemDisk()
    clock = clock or SystemClock()
    there = folder
    while not disk.exists(there):
        there = os.path.dirname(os.path.abspath(there))
    probe = os.path.join(there, ".headrace-doctor")
    try:
        milliseconds = _fsync_milliseconds(disk, clock, probe)
    except (HeadraceError, OSError) as error:
        return [
            Finding(
                "fail",
                "data folder",
                f"cannot write to {there}: {error}",
                "choose another with --data, or give this user the right to write there",
            )
        ]
    return [
        Finding("ok", "data folder", f"{there} is writable"),
        _judge_space(there, disk.free_bytes(there), disk.total_bytes(there)),
        _judge_fsync(milliseconds),
    ]


def check_strays(folder: str, disk: Disk | None = None) -> list[Finding]:
    """Logs that the registry does not know are kept until an operator decides."""
    disk = disk or SystemDisk()
    folders = [folder, *(f"{folder}/{name}" for name in (disk.list(folder) if disk.exists(folder) else ()))]
    sizes = [measure_strays(disk, one) for one in folders if disk.exists(f"{one}/{STRAY}")]
    logs, size_bytes = sum(size.logs for size in sizes), sum(size.size_bytes for size in sizes)
    if not logs:
        return []
    what = f"{logs} logs, {size_bytes / 1e6:.1f} MB, are not known to the registry and kept in {STRAY}"
    step = "see `headrace log stray`, then `headrace log adopt` or `headrace log purge-stray`"
    return [Finding("warn", "stray logs", what, step)]


def check_descriptors() -> Finding:
    """Connections and log files share the limit of open files; the broker raises it to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard >= _DESCRIPTORS_MIN:
        return Finding("ok", "open files", f"up to {hard} (now {soft})")
    return Finding(
        "warn",
        "open files",
        f"only up to {hard}",
        f"raise it: ulimit -Hn {_DESCRIPTORS_MIN}, or LimitNOFILE= in systemd",
    )


def check_clock(clock: Clock | None = None) -> Finding:
    """Retention and timestamps follow the wall clock."""
    now = datetime.fromtimestamp((clock or SystemClock()).now_ms() / 1000, UTC)
    if now.year < _RELEASED_IN:
        return Finding("fail", "clock", f"it says {now:%Y-%m-%d %H:%M} UTC", "set the clock, for example with NTP")
    return Finding("ok", "clock", f"{now:%Y-%m-%d %H:%M:%S} UTC")


async def check_port(subject: str, address: Address) -> Finding:
    """Whether a broker could listen there."""
    try:
        listener = await SystemNetwork().listen(*address, lambda link: link.close())
    except OSError as error:
        return Finding(
            "warn", subject, f"{address} cannot be listened on ({error.strerror or error})", "choose another port"
        )
    listener.close()
    return Finding("ok", subject, f"{address} is free")


async def check_broker(server: str) -> list[Finding]:
    """Whether the broker answers, what it speaks, and whether every broker can be reached where it says."""
    address = ",".join(map(str, parse_addresses(server)))
    async with connect(server, ClientSettings(client_id="headrace-doctor")) as cluster:
        try:
            view = await cluster.refresh([])
            transport = await cluster.any_transport()
        except HeadraceError as error:
            step = "start one with `headrace serve`, or name another with --server HOST:PORT"
            return [Finding("fail", "broker", error.message, step)]
        findings = [
            Finding("ok", "broker", f"{address} answers; cluster {view.cluster_id}, {len(view.nodes)} broker(s)"),
            _judge_versions(transport),
        ]
        findings += [await _check_advertised(cluster, node_id) for node_id in sorted(view.nodes)]
    return findings


async def _check_advertised(cluster: Cluster, node_id: int) -> Finding:
    address = cluster.view.nodes[node_id].address
    subject = f"broker {node_id}"
    try:
        await cluster.transport(node_id, "doctor")
    except HeadraceError:
        return Finding(
            "fail",
            subject,
            f"advertises {address}, which cannot be reached from here",
            "start it with --advertised HOST:PORT that clients can reach",
        )
    return Finding("ok", subject, f"advertises {address}, which can be reached")


def _judge_versions(transport: Transport) -> Finding:
    # Our own requests, from 10000 on, are not missed in another's broker.
    missing = [api.name for api in APIS.values() if api.key not in transport.versions and api.key < OWN_KEYS]
    too_old = [
        api.name
        for api in APIS.values()
        if api.key in transport.versions and transport.versions[api.key].high < api.min_version
    ]
    if too_old:
        return Finding("fail", "versions", f"the broker's {', '.join(too_old)} is too old", "update the broker")
    if missing:
        return Finding("warn", "versions", f"the broker does not serve {', '.join(missing)}", "update the broker")
    return Finding("ok", "versions", f"all {len(APIS)} requests of this client are served")


def _judge_space(folder: str, free: int, total: int) -> Finding:
    what = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free at {folder}"
    if free < _FREE_BYTES_MIN or free < total * _FREE_SHARE_MIN:
        return Finding("warn", "space", what, "free some, or shorten retention: near the end the broker refuses writes")
    return Finding("ok", "space", what)


def _judge_fsync(milliseconds: float) -> Finding:
    what = f"{milliseconds:.2f} ms (median of {_FSYNC_TRIES})"
    if milliseconds > _FSYNC_SLOW_MS:
        return Finding("warn", "fsync", what, "an acknowledged write waits that long: use a faster disk")
    return Finding("ok", "fsync", what)


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
