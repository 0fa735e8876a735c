"""Inject each kind of fault into a node, and heal it.

An injector returns the function that heals its fault. The faults of one round affect different nodes, so that they do
not interfere. Only packets may be dropped by two faults; the first one heals them.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from tests.chaos.clocks import WrongClock
from tests.chaos.cluster import Cluster, view_of
from tests.chaos.damage import damage_one, repair
from tests.chaos.disks import SmallDisk
from tests.chaos.names import COPIES, NUMBERS, SOURCE
from tests.chaos.nodes import BrokerNode, Node
from tests.chaos.schedule import (
    KINDS,
    NEED_CLOCKS,
    NEED_DISKS,
    NEED_ENSEMBLE,
    NEED_NETWORK,
    NEED_STRACE,
    ON_ONE_HOST,
    QUIET,
    PlannedFault,
)
from tests.integration.process import wait_until

FSYNC_DELAY_MS = 150
FAILING_FSYNC_EVERY = 7
OUT_OF_SERVICE = r"CRITICAL .* out of service .*Input/output error"
"""The log line of a broker whose disk fails."""
CLOCK_JUMPS_SECONDS = (20.0, 300.0, 3600.0, 6 * 3600.0)
LOSS_PERCENT = 25

Heal = Callable[[], None]
Pair = tuple[str, str]


@dataclass
class InjectedFault:
    """A fault that is active or healed. Times are those of the monotonic clock, which all processes here share."""

    planned: PlannedFault
    nodes: tuple[str, ...]
    began: float
    ends: float
    heal: Heal = field(repr=False)
    healed: float | None = None

    @property
    def title(self) -> str:
        return f"{self.planned.kind} of {', '.join(self.nodes)}" if self.nodes else self.planned.kind


def kinds_possible(cluster: Cluster) -> tuple[list[str], dict[str, str]]:
    """Return the kinds that are possible here, and why the others are not."""
    reasons: dict[str, str] = {}
    if cluster.parent is not None:
        of_others = [kind for kind in KINDS if kind not in ON_ONE_HOST]
        reasons |= dict.fromkeys(of_others, "all brokers are children of one process, and SQLite is their registry")
    if cluster.no_network_reason is not None:
        reasons |= dict.fromkeys(NEED_NETWORK, cluster.no_network_reason)
    if cluster.no_disks_reason is not None:
        reasons |= dict.fromkeys(NEED_DISKS, cluster.no_disks_reason)
    if shutil.which("strace") is None:
        reasons |= dict.fromkeys(NEED_STRACE, "strace is not installed")
    if cluster.no_clocks_reason is not None:
        reasons |= dict.fromkeys(NEED_CLOCKS, cluster.no_clocks_reason)
    if cluster.parent is None and len(cluster.zookeepers) < 3:
        reasons |= dict.fromkeys(NEED_ENSEMBLE, "there is one ZooKeeper server only")
    return [kind for kind in KINDS if kind not in reasons], reasons


def inject(cluster: Cluster, planned: PlannedFault, nodes: tuple[Node, ...], chance: random.Random) -> InjectedFault:
    began = time.monotonic()
    heal = _INJECTORS[planned.kind](cluster, nodes, chance)
    return InjectedFault(planned, tuple(node.name for node in nodes), began, began + planned.lasts_seconds, heal)


def leaves_majority(faults: Iterable[InjectedFault]) -> bool:
    """Return whether the faults affect at most one broker and one ZooKeeper server at a time: then writes must
    continue."""
    affected = [name for fault in faults if fault.planned.kind != "rolling restart" for name in fault.nodes]
    return all(sum(name.startswith(kind) for name in affected) <= 1 for kind in "bz")


# --- processes ---


def _kill(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    (node,) = nodes
    node.kill()
    return node.launch


def _kill_all(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Kill all brokers at the same moment, so that none sees another one fail or takes over."""
    if cluster.parent is not None:
        cluster.parent.kill()
        return cluster.parent.launch
    for node in nodes:
        node.signal(signal.SIGKILL)
    for node in nodes:
        node.kill()
    return partial(_launch_all, nodes)


def _launch_all(nodes: tuple[Node, ...]) -> None:
    for node in nodes:
        node.launch()


def _pause(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    (node,) = nodes
    node.pause()
    return node.resume


def _rolling_restart(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Restart one broker after another, each when all replicas are in sync.

    A broker that was started a moment ago may not have installed its signal handlers yet: SIGTERM would kill it.
    """
    for node in nodes:
        node.wait_ready()
    for node in chance.sample(nodes, len(nodes)):
        code = node.terminate()
        assert code == 0, f"{node.name} ended with exit code {code} on SIGTERM:\n{node.log_tail()}"
        node.launch()
        node.wait_ready()
        cluster.wait_in_sync()
    return _nothing


def _quiet(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    return _nothing


def _nothing() -> None:
    pass


# --- the network ---


def _drop(cluster: Cluster, pairs: Iterable[Pair], percent: int = 100) -> Heal:
    network = cluster.network
    assert network is not None
    mine = [pair for pair in pairs if not network.is_cut(*pair)]
    for source, target in mine:
        network.drop(source, target, percent)

    def heal() -> None:
        for source, target in mine:
            network.restore(source, target)

    return heal


def _to(node: Node, others: Iterable[str]) -> list[Pair]:
    return [(other, node.name) for other in others if other != node.name]


def _both(node: Node, others: Iterable[str]) -> list[Pair]:
    inwards = _to(node, others)
    return inwards + [(target, source) for source, target in inwards]


def _all_hosts(cluster: Cluster) -> list[str]:
    assert cluster.network is not None
    return list(cluster.network.hosts)


def _cut_off(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    return _drop(cluster, _both(nodes[0], _all_hosts(cluster)))


def _cut_from_cluster(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Clients still reach the node: it may respond to them without knowing that it was replaced."""
    return _drop(cluster, _both(nodes[0], (node.name for node in cluster.nodes)))


def _cut_from_brokers(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    return _drop(cluster, _both(nodes[0], (broker.name for broker in cluster.brokers)))


def _cut_from_registry(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    return _drop(cluster, _both(nodes[0], (node.name for node in cluster.zookeepers)))


def _deaf(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """The node receives nothing, but its packets arrive."""
    return _drop(cluster, _to(nodes[0], _all_hosts(cluster)))


def _mute(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """The node receives all packets, but none of its own arrive."""
    inwards = _to(nodes[0], _all_hosts(cluster))
    return _drop(cluster, [(target, source) for source, target in inwards])


def _packet_loss(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    return _drop(cluster, _both(nodes[0], _all_hosts(cluster)), LOSS_PERCENT)


def _majority_ring(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Every node reaches a majority, and no two the same one."""
    ring = chance.sample([node.name for node in nodes], len(nodes))
    count = len(ring)
    deaf_to = range(count // 2, count - 1)  # the distances in the ring from which a node receives nothing
    pairs = [(ring[(place - far) % count], ring[place]) for place in range(count) for far in deaf_to]
    return _drop(cluster, pairs)


# --- clocks ---


def _clock_jump(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Set the clock of a running broker wrong. Decisions that depend on time must not change (I35), except delays."""
    began = time.time_ns() // 10**6
    correct_wall_clock = _set_wrong(_broker(nodes).clock, chance)

    def heal() -> None:
        correct_wall_clock()
        cluster.wrong_clocks.append((began, time.time_ns() // 10**6))

    return heal


def _client_clock_jump(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Set the clock of some clients wrong, so that their records have wrong timestamps."""
    return _set_wrong(cluster.client_clock, chance)


def _set_wrong(clock: WrongClock | None, chance: random.Random) -> Heal:
    assert clock is not None
    clock.set_wrong(chance.choice((-1, 1)) * chance.choice(CLOCK_JUMPS_SECONDS))
    return partial(clock.set_wrong, 0.0)


# --- disks ---


def _frozen_disk(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """The disk is that of one broker, or of the host that all brokers share."""
    (disk,) = _disks(nodes)
    disk.freeze()
    return disk.thaw


def _power_cut(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Cut the power of one broker or all: kill it, and drop all unsynced data."""
    heal = _kill_all(cluster, nodes, chance)
    for disk in _disks(nodes):
        disk.cut_power()
    return heal


def _corrupted_file(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Change a byte while the broker is down. Two other replicas have the correct one."""
    broker = _broker(nodes)
    wait_until(lambda: any(map(view_of, cluster.brokers)), "a broker describes the cluster")
    copies = cluster.log_folders((NUMBERS, SOURCE, COPIES)).values()
    here = [folder for folders in copies for folder in folders if folder.is_relative_to(broker.data)]
    if chance.random() < 0.5:
        broker.kill()
    else:  # all its logs are then below their checkpoints, where recovery does not read
        broker.terminate()
    damage = damage_one(broker, [folder for folder in here if folder.exists()], chance)
    if damage is None:
        return broker.launch
    cluster.damages.append(damage)
    return partial(repair, damage)


def _full_disk(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """The disk is that of one broker, or of the host that all brokers share."""
    (disk,) = _disks(nodes)
    disk.fill()
    return disk.empty


def _slow_disk(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Delay every fsync; strace also delays every other system call a little."""
    return _trace_syncs(_broker(nodes), f"delay_exit={FSYNC_DELAY_MS * 1000}")


def _failing_fsync(cluster: Cluster, nodes: tuple[Node, ...], chance: random.Random) -> Heal:
    """Make some or all syncs fail with EIO without effect. A failed log stays failed until the broker restarts (I23):
    the healing stops the broker cleanly, or cuts its power, which shows what was really synced."""
    broker = _broker(nodes)
    broker.excused = OUT_OF_SERVICE
    end = _trace_syncs(broker, chance.choice(("error=EIO", f"error=EIO:when=1+{FAILING_FSYNC_EVERY}")))
    cuts_power = broker.disk is not None and chance.random() < 0.5

    def heal() -> None:
        end()
        if not cuts_power and broker.is_running:
            broker.terminate()
        broker.kill()
        if cuts_power and broker.disk is not None:
            broker.disk.cut_power()
        broker.launch()

    return heal


def _trace_syncs(broker: BrokerNode, fault: str) -> Heal:
    """Apply this fault to every fsync and fdatasync of the broker."""
    if broker.process is None:
        return _nothing
    calls = "fdatasync,fsync"
    where = ("-p", str(broker.process.pid), "-e", f"trace={calls}", "-e", f"inject={calls}:{fault}")
    command = ["strace", "-f", "-qq", *where, "-o", "/dev/null"]
    tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        tracer.terminate()
        tracer.wait()

    return end


def _disks(nodes: tuple[Node, ...]) -> list[SmallDisk]:
    """Return each disk once; brokers on one host share it."""
    found = {id(disk): disk for node in nodes if (disk := _broker((node,)).disk) is not None}
    assert found
    return list(found.values())


def _broker(nodes: tuple[Node, ...]) -> BrokerNode:
    (node,) = nodes
    assert isinstance(node, BrokerNode)
    return node


_INJECTORS: dict[str, Callable[[Cluster, tuple[Node, ...], random.Random], Heal]] = {
    "kill": _kill,
    "pause": _pause,
    "rolling restart": _rolling_restart,
    "cluster kill": _kill_all,
    QUIET: _quiet,
    "cut off": _cut_off,
    "cut from cluster": _cut_from_cluster,
    "cut from brokers": _cut_from_brokers,
    "cut from registry": _cut_from_registry,
    "deaf": _deaf,
    "mute": _mute,
    "packet loss": _packet_loss,
    "majority ring": _majority_ring,
    "clock jump": _clock_jump,
    "client clock jump": _client_clock_jump,
    "frozen disk": _frozen_disk,
    "full disk": _full_disk,
    "slow disk": _slow_disk,
    "failing fsync": _failing_fsync,
    "corrupted file": _corrupted_file,
    "power cut": _power_cut,
    "cluster power cut": _power_cut,
    "zookeeper kill": _kill,
    "zookeeper pause": _pause,
    "zookeeper cut off": _cut_off,
}
