"""Hosts as network namespaces on one bridge, and packet loss between them.

    hr<N>            the bridge; the harness has 10.77.<N>.254 on it and is never isolated
    hr<N>-<name>     the namespace of each host, 10.77.<N>.1 and up

An ingress filter drops packets at the receiver, so a cut may have one direction only. Kernels are built with different
parts of traffic control: the filter is a classic BPF program, which all of them support, and redirects the packets to a
bridge without ports, because the action `drop` is often missing.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
from dataclasses import dataclass

from tests.chaos.run_locks import RunLock

TOOLS = ("ip", "tc")
SUBNET = "10.77"
HOLE = "hole"
_IP_SOURCE = 2**32 - 0x100000 + 12  # SKF_NET_OFF + the offset of the source in the header
_RANDOM = 2**32 - 0x1000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 32, 21, 53, 6
_PICKED, _LEFT = 2**32 - 1, 0


@dataclass(frozen=True, slots=True)
class Host:
    """A host for processes: their commands begin with `prefix`."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


class Namespaces:
    """The hosts of one run. Concurrent runs do not clash: each has its own run number."""

    def __init__(self, run_lock: RunLock, names: list[str]) -> None:
        self._bridge = f"hr{run_lock.number}"
        self._cuts: set[tuple[str, str]] = set()
        self.hosts: dict[str, Host] = {}
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{SUBNET}.{run_lock.number}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for number, name in enumerate(names, 1):
            space = f"{self._bridge}-{name}"
            address = f"{SUBNET}.{run_lock.number}.{number}"
            _ip("netns", "add", space)
            _ip("link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", space, "master", self._bridge, "up")
            _ip("-n", space, "link", "add", HOLE, "type", "bridge")
            for device in ("lo", "eth0", HOLE):
                _ip("-n", space, "link", "set", device, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "ingress")
            self.hosts[name] = Host(name, address, ("ip", "netns", "exec", space))

    def drop(self, source: str, target: str, percent: int = 100) -> None:
        """Drop all or some packets from one host to another; once for each pair."""
        assert (source, target) not in self._cuts, f"{source} is already isolated from {target}"
        program = filter_program(self.hosts[source].address, percent)
        action = ("action", "mirred", "egress", "redirect", "dev", HOLE)
        _run("tc", *self._filter("add", source, target), "protocol", "ip", "bpf", "bytecode", program, *action)
        self._cuts.add((source, target))

    def restore(self, source: str, target: str) -> None:
        _run("tc", *self._filter("del", source, target))
        self._cuts.remove((source, target))

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def _filter(self, verb: str, source: str, target: str) -> list[str]:
        number = self.hosts[source].address.rpartition(".")[2]
        return ["-n", f"{self._bridge}-{target}", "filter", verb, "dev", "eth0", "ingress", "pref", number]


def unavailable_reason() -> str | None:
    """Return why namespaces are not possible on this machine; None if they are."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{' and '.join(missing)} of iproute2 not installed"
    probe = f"hrprobe{os.getpid()}"
    try:
        _ip("netns", "add", probe)
        try:
            _ip("-n", probe, "link", "add", HOLE, "type", "bridge")
            _run("tc", "-n", probe, "qdisc", "add", "dev", "lo", "ingress")
            program = filter_program("127.0.0.1", 50)
            action = ("action", "mirred", "egress", "redirect", "dev", HOLE)
            where = ("filter", "add", "dev", "lo", "ingress", "pref", "1", "protocol", "ip")
            _run("tc", "-n", probe, *where, "bpf", "bytecode", program, *action)
        finally:
            _ip("netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` failed: {error.stderr.strip()}"
    return None


def remove(number: int) -> None:
    """Kill the processes in the namespaces of a run, and remove the namespaces, if there are any."""
    bridge = f"hr{number}"
    listing = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout
    for space in (line.split()[0] for line in listing.splitlines() if line.startswith(f"{bridge}-")):
        inside = subprocess.run(["ip", "netns", "pids", space], check=False, capture_output=True, text=True).stdout
        for process_id in inside.split():
            subprocess.run(["kill", "-KILL", process_id], check=False, capture_output=True)
        # The device disappears some time after its namespace: the next run would find it still there.
        subprocess.run(["ip", "link", "del", space], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def filter_program(source: str, percent: int) -> str:
    """Return a classic BPF program, in the notation of tc, that matches this percentage of packets of a source."""
    number = int(ipaddress.ip_address(source))
    threshold = min(2**32 * percent // 100, 2**32 - 1)
    steps = [
        (_LOAD, 0, 0, _IP_SOURCE),
        (_IF_EQUAL, 0, 3, number),
        (_LOAD, 0, 0, _RANDOM),
        (_IF_AT_LEAST, 1, 0, threshold),
        (_RETURN, 0, 0, _PICKED),
        (_RETURN, 0, 0, _LEFT),
    ]
    if percent >= 100:
        steps = [steps[0], (_IF_EQUAL, 0, 1, number), *steps[4:]]
    return ",".join([str(len(steps)), *(" ".join(map(str, step)) for step in steps)])


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
