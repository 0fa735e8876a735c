"""A stream's progress as that of a consumer group, so that every tool for lag shows Spark's.

Spark's own account is its checkpoint; the group is for people. So a commit that fails is told in the log and the
query goes on; only a group that cannot be is an error.
"""

from __future__ import annotations

import logging

from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import Commit, commit
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import HeadraceError, InconsistentGroupProtocol, InvalidGroupId
from headrace.spark.offsets import OffsetMap

DEADLINE_SECONDS = 5.0

log = logging.getLogger(__name__)


class GroupProgress:
    def __init__(self, brokers: str, group: str) -> None:
        self._brokers = brokers
        self._group = group
        self._committed: OffsetMap = {}
        self._has_warned = ""

    def commit(self, offsets: OffsetMap) -> None:
        """All records before these offsets are done with."""
        moved = {target: Commit(offset) for target, offset in offsets.items() if self._committed.get(target) != offset}

        async def ask(cluster: Cluster) -> None:
            await commit(cluster, self._group, moved, deadline_seconds=DEADLINE_SECONDS)

        try:
            sync_cluster(self._brokers).call(ask)
        except (InvalidGroupId, InconsistentGroupProtocol):
            raise
        except HeadraceError as error:
            if error.message != self._has_warned:  # a stream asks every second or so
                log.warning("the progress of group %r was not committed: %s", self._group, error.message)
            self._has_warned = error.message
        else:
            self._committed, self._has_warned = dict(offsets), ""
