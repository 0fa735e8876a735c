"""One run: start everything, inject faults by the schedule, heal, wait until all clients catch up, stop, check."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tests.chaos import checks, damage, replicas
from tests.chaos.availability import Acknowledgements
from tests.chaos.cluster import ROLES, Cluster
from tests.chaos.cluster_reads import read_all
from tests.chaos.faults import InjectedFault, inject, kinds_possible
from tests.chaos.names import COPIERS, COPIES, GROUP, JAVA_NUMBERS, NUMBERS, SHARED, SOURCE, SPARK_SOURCE
from tests.chaos.nodes import Node
from tests.chaos.processes import Stuck
from tests.chaos.queue_workload import ACKS, LOGS
from tests.chaos.run_result import Options, RunResult
from tests.chaos.schedule import NEED_DISKS, OF_ALL, OF_NO_NODE, PlannedFault, Round, rounds
from tests.chaos.workload import Workload

POLL_SECONDS = 0.1
WARM_UP_SECONDS = 5.0
"""Long enough for a group to form and a transaction to be committed."""
OWNERS = {"group coordinator": GROUP, "transaction coordinator": COPIERS[0]}


def run(options: Options) -> RunResult:
    result = RunResult(options)
    folder = options.folder / "cluster"
    cluster = Cluster(folder, options.brokers, options.servers, options.session_seconds, result.note)
    workload = Workload(cluster, options)
    result.left_out = workload.left_out
    try:
        cluster.start()
        workload.start()
        _FaultInjection(cluster, workload, result).run()
        _drain(cluster, workload, result)
        _compare(cluster, result)
    except AssertionError as failure:
        result.violations.append(f"the run stopped: {failure}")
    finally:
        workload.kill()
        result.acknowledgements = Acknowledgements(workload.acknowledged())
        result.violations += checks.check_logs(cluster) + checks.check_availability(result)
        cluster.close()
    return result


class _FaultInjection:
    def __init__(self, cluster: Cluster, workload: Workload, result: RunResult) -> None:
        self._cluster, self._workload, self._result = cluster, workload, result
        # A separate stream: the number of draws depends on timing, and the schedule must follow from the seed.
        self._chance = random.Random(f"targets {result.options.seed}")

    def run(self) -> None:
        options, result = self._result.options, self._result
        kinds, result.impossible = kinds_possible(self._cluster)
        if options.kinds:
            kinds = [kind for kind in kinds if kind in options.kinds]
            assert kinds, f"none of {', '.join(options.kinds)} is possible here: {result.impossible}"
        self._watch(WARM_UP_SECONDS)
        result.began = time.monotonic()
        drawn = rounds(random.Random(options.seed), kinds, ROLES, options.session_seconds)
        try:
            for one in options.plan or drawn:
                if not options.plan and time.monotonic() > result.began + options.seconds:
                    break
                self._run_round(one)
        finally:
            result.ended = time.monotonic()

    def _run_round(self, one: Round) -> None:
        under_way: list[InjectedFault] = []
        played: list[InjectedFault] = []
        self._result.rounds.append(played)
        try:
            for planned in one.faults:
                nodes = self._targets(planned, [name for fault in played for name in fault.nodes])
                if nodes is None or planned.kind in self._result.impossible:
                    continue
                self._result.note(
                    f"{planned.kind} of {', '.join(node.name for node in nodes) or 'no node'} ({planned.role}), "
                    f"for {planned.lasts_seconds:.1f} s"
                )
                injected = inject(self._cluster, planned, nodes, self._chance)
                under_way.append(injected)
                played.append(injected)
            while under_way:
                self._watch(POLL_SECONDS, with_faults=[name for fault in under_way for name in fault.nodes])
                for fault in [fault for fault in under_way if fault.ends <= time.monotonic()]:
                    under_way.remove(fault)
                    self._heal(fault)
        finally:
            for fault in under_way:
                self._heal(fault)
        if not played:
            return
        self._watch(one.quiet_seconds)
        if one.waits_for_in_sync:
            began = time.monotonic()
            self._cluster.wait_in_sync()
            self._result.note(f"all in sync after {time.monotonic() - began:.1f} s more")

    def _heal(self, fault: InjectedFault) -> None:
        fault.heal()
        fault.healed = time.monotonic()
        self._result.note(f"healed: {fault.title}")

    def _targets(self, planned: PlannedFault, with_faults: Sequence[str]) -> tuple[Node, ...] | None:
        """Choose the target nodes; None if all nodes of the kind have a fault already."""
        cluster = self._cluster
        if planned.kind in OF_NO_NODE:
            return ()
        if planned.kind in OF_ALL or (cluster.parent is not None and planned.kind in NEED_DISKS):
            return tuple(cluster.nodes if planned.kind == "majority ring" else cluster.brokers)
        wanted: Node
        if planned.is_of_zookeeper:
            wanted, others = cluster.zookeeper_leader(self._chance), list[Node](cluster.zookeepers)
        else:
            wanted = cluster.broker_for(planned.role, NUMBERS, OWNERS, self._chance)
            others = list[Node](cluster.brokers)
        others = [node for node in others if node.name not in with_faults and node.is_running]
        if wanted in others:
            return (wanted,)
        return (self._chance.choice(others),) if others else None

    def _watch(self, seconds: float, with_faults: Iterable[str] = ()) -> None:
        """Wait; restart processes that ended by themselves, unless a fault keeps them down."""
        until = time.monotonic() + seconds
        while True:
            self._cluster.restart_ended(with_faults)
            self._workload.supervise()
            if time.monotonic() >= until:
                return
            time.sleep(POLL_SECONDS)


def _drain(cluster: Cluster, workload: Workload, result: RunResult) -> None:
    """After healing, wait until all clients have caught up, and check the histories."""
    cluster.wait_in_sync()
    result.note("all faults healed, all replicas in sync")
    workload.stop_writers()
    final = {topic: read_all(cluster.bootstrap, topic) for topic in (NUMBERS, SOURCE)}
    ends = {partition: log[-1][0] + 1 if log else 0 for partition, log in final[NUMBERS].items()}
    source = [value for log in final[SOURCE].values() for _, value in log]
    waits: tuple[Callable[[], None], ...] = (
        partial(workload.wait_read, ends),
        partial(workload.wait_committed, ends),
        partial(workload.wait_copied, len(source)),
        *(clients.wait_finished for clients in workload.client_workloads),
    )
    for wait in waits:
        try:
            wait()
        except Stuck as stuck:
            result.violations.append(f"stuck: {stuck}")
    workload.stop_readers()
    workload.kill()
    copies = [value for log in read_all(cluster.bootstrap, COPIES).values() for _, value in log]
    result.note("drained")
    result.counts |= {
        "records acknowledged in numbers": sum(1 for _ in workload.acknowledged()),
        "records in numbers": sum(len(log) for log in final[NUMBERS].values()),
        "records in source": len(source),
        "records in copies": len(copies),
        "starts of copiers": workload.copier_starts,
        "clients restarted because their library hung": workload.libraries_hung,
    }
    result.violations += checks.check_history(workload.transcripts, final)
    result.violations += checks.check_copies(source, copies)
    for clients in workload.client_workloads:
        result.counts |= clients.counts()
        result.violations += clients.check()


def _compare(cluster: Cluster, result: RunResult) -> None:
    """Stop the brokers cleanly, and compare the logs on their disks."""
    cluster.wait_in_sync()
    equal = cluster.log_folders((NUMBERS, SOURCE, COPIES, SHARED, JAVA_NUMBERS, SPARK_SOURCE, *LOGS))
    growing = cluster.log_folders((ACKS,))  # a leader that takes over while others stop writes a record of it
    for broker in cluster.broker_processes:
        code = broker.terminate()
        if code != 0:
            result.violations.append(f"{broker.name} ended with exit code {code} on SIGTERM")
    logs, size, found = replicas.compare(equal, growing)
    result.counts |= {"logs damaged": len(cluster.damages), "logs compared": logs, "bytes compared": size}
    result.violations += found + damage.check(cluster.damages)
    for broker in cluster.brokers:
        result.violations += replicas.verify(broker.data)
    result.note("replicas compared")
