"""Negative controls of the features about broken storage: bugs in how storage faults are handled.

A seed that draws the feature must find the bug. `Control` notes the first such seed.
"""

from __future__ import annotations

import pytest
from tests.simulation.features.bit_flips import BitFlips
from tests.simulation.features.failing_syncs import FailingSyncs
from tests.simulation.features.lost_folders import LostFolders
from tests.simulation.regression_controls import Control

from headrace.broker.cluster.cluster_member import ClusterMember
from headrace.runtime.disk import DiskFailed
from headrace.storage.log.flusher import PendingFlush
from headrace.storage.log.recovery import Recovery
from headrace.storage.segments.segment import Segment


def trust_unverified_bytes(patch: pytest.MonkeyPatch) -> None:
    """A read returns bytes that an earlier process wrote without verifying their checksums."""
    patch.setattr(Segment, "trusts", lambda *_: True)


def forget_damage_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Damage below the checkpoint is forgotten at a restart, so the log is never replicated again."""
    patch.setattr(Recovery, "_look_for_damage", lambda _: iter(()))


def truncate_damage(patch: pytest.MonkeyPatch) -> None:
    """Recovery takes damage of flushed data for the end of an incomplete write."""
    end_at = Recovery._end_at

    def end_anyway(self: Recovery, segment: Segment, position: int, reason: str) -> None:
        self.flushed_offset = self.end_offset
        end_at(self, segment, position, reason)

    patch.setattr(Recovery, "_end_at", end_anyway)


def sync_again_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """Retry a failed sync, as PostgreSQL did until 2018: the kernel has dropped the pages, and the second sync
    succeeds."""

    sync = PendingFlush.sync

    def sync_again(self: PendingFlush) -> None:
        sync(self)
        while isinstance(self.failure, DiskFailed):
            self.failure = None
            sync(self)

    patch.setattr(PendingFlush, "sync", sync_again)


def treat_a_lost_log_as_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    """A broker that lost its data stays in the in-sync sets."""
    patch.setattr(ClusterMember, "_may_have_lost", lambda *_: False)
    finish = Recovery._finish

    def finish_anyway(self: Recovery) -> None:
        self.flushed_offset = min(self.flushed_offset, self.end_offset)
        finish(self)

    patch.setattr(Recovery, "_finish", finish_anyway)


STORAGE_CONTROLS = (
    Control(trust_unverified_bytes, BitFlips, "which is damaged", 45),
    Control(forget_damage_at_a_restart, BitFlips, "NotRecovered", 45),
    Control(truncate_damage, BitFlips, "would be truncated to", 45),
    Control(sync_again_after_a_failure, FailingSyncs, "BrokerFailed", 60),
    Control(treat_a_lost_log_as_an_empty_one, LostFolders, "in partition", 6),
)
