"""The group coordinator: the groups of all partitions of `__consumer_offsets` that this broker leads.

`coordination/shards.py` explains when a shard is loaded and closed, and how requests fail otherwise. A broker that does
not know yet that it leads the partition, or that the topic exists, must not answer either: a response without the
committed offsets would reset consumers to the start.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.coordination.shards import OwnerCoordinator
from headrace.broker.groups.consumer_groups import TopicsImageCache
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.group_shard import GroupShard
from headrace.broker.groups.offsets_log import OffsetsLog, OffsetsLogPartition
from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import CoordinatorLoading
from headrace.runtime.clock import Clock


class GroupCoordinator(OwnerCoordinator[GroupShard]):
    _log: OffsetsLog

    def __init__(
        self,
        offsets_log: OffsetsLog,
        catalogue: Catalogue,
        configs: GroupConfigs,
        clock: Clock,
        session_expired: Callable[[], bool],
    ) -> None:
        super().__init__(offsets_log, clock, session_expired)
        self.configs = configs
        self._topics_image_cache = TopicsImageCache(catalogue)

    def of(self, group_id: str) -> GroupShard:
        self._ensure_running()
        shard = self._shards.get(self._log.partition_of(group_id).index)
        if shard is None or not shard.is_loaded:
            raise CoordinatorLoading(f"the coordinator of {group_id} is still loading its state; retry")
        self._log.ensure_readable(group_id)
        return shard

    def forget_topic(self, topic: str) -> None:
        for shard in self:
            shard.forget_topic(topic)

    def expire(self, retention_ms: int) -> None:
        for shard in self:
            shard.expire(retention_ms)

    def _create_shard(self, partition: Partition) -> GroupShard:
        log_partition = OffsetsLogPartition(self._log, partition)
        return GroupShard(log_partition, self._topics_image_cache.view, self.configs, self.now_ms)
