"""The replication of all followed partitions: one fetcher for each broker that leads any of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from headrace.broker.partition import Partition
from headrace.broker.peers import Peers
from headrace.broker.replica_fetcher import Followed, ReplicaFetcher
from headrace.machines.rate import Rate
from headrace.model.broker_configs import BrokerConfig
from headrace.model.broker_record import BrokerRecord
from headrace.model.partition_record import PartitionRecord
from headrace.runtime.clock import Clock
from headrace.storage.flusher import Flusher

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Replication:
    def __init__(
        self,
        peers: Peers,
        flusher: Flusher,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        spawn: Spawn,
        node_id: int,
        broker_epoch: int,
    ) -> None:
        self._peers = peers
        self._flusher = flusher
        self._config = config
        self._clock = clock
        self._spawn = spawn
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._catching_up = Rate()
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[Partition, int] = {}

    def follow(self, partition: Partition, leader: BrokerRecord, record: PartitionRecord) -> None:
        """Replicate a partition from this leader, in its current leader epoch."""
        if self._leaders.get(partition) != leader.node_id:
            self.drop(partition)
        self._leaders[partition] = leader.node_id
        fetcher = self._fetchers.get(leader.node_id)
        if fetcher is None:
            fetcher = self._fetchers[leader.node_id] = ReplicaFetcher(
                leader.node_id,
                self._peers,
                self._flusher,
                self._config,
                self._catching_up,
                self._clock,
                self._node_id,
                self._broker_epoch,
            )
            self._spawn(fetcher.run(), f"replication from broker {leader.node_id}")
        is_joining = self._node_id not in record.isr
        fetcher.add(Followed(partition, record.leader_epoch, record.unclean_epoch, is_joining))

    def drop(self, partition: Partition) -> None:
        """Stop replicating a partition."""
        node_id = self._leaders.pop(partition, None)
        if node_id is not None:
            self._fetchers[node_id].remove(partition)

    @property
    def lagging(self) -> int:
        """Count the followed partitions whose leader does not respond."""
        return sum(fetcher.is_failing * len(fetcher) for fetcher in self._fetchers.values())
