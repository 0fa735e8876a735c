"""Errors of cluster operations: leader elections, reassignments and stale brokers. Import them from `errors`."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError, RetriableError


class LeaderNotAvailable(RetriableError):
    """The partition has no leader; an election is in progress, or no eligible replica is available. Retry."""

    code = 5


class StaleBrokerEpoch(HeadraceError):
    """The broker was restarted after it sent this request."""

    code = 77


class OffsetNotAvailable(RetriableError):
    """The new leader has not determined the high watermark yet. Retry."""

    code = 78


class PreferredLeaderNotAvailable(RetriableError):
    """The preferred replica of the partition is not available, is shutting down, or is not in sync."""

    code = 80


class EligibleLeadersNotAvailable(RetriableError):
    """No eligible replica of the partition is available."""

    code = 83


class ElectionNotNeeded(HeadraceError):
    """The partition has a leader, or can elect one without loss of data."""

    code = 84


class NoReassignmentInProgress(HeadraceError):
    """The partition has no reassignment in progress."""

    code = 85
