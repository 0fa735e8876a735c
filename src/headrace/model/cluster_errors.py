"""The refusals that come of many brokers: elections, moves of partitions, and starts that are over. Import them from
`errors`."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError, RetriableError


class LeaderNotAvailable(RetriableError):
    """Nobody leads the partition now; an election is under way, or no replica that may lead is up."""

    code = 5


class StaleBrokerEpoch(HeadraceError):
    """The broker has been started again since it sent this."""

    code = 77


class OffsetNotAvailable(RetriableError):
    """A new leader does not know yet what its predecessor has committed."""

    code = 78


class PreferredLeaderNotAvailable(RetriableError):
    """The first replica of the partition is not up, is going down, or lacks records."""

    code = 80


class EligibleLeadersNotAvailable(RetriableError):
    """No replica that may lead the partition is up."""

    code = 83


class ElectionNotNeeded(HeadraceError):
    """The partition has a leader that is up, or will have one without loss."""

    code = 84


class NoReassignmentInProgress(HeadraceError):
    """The partition is not being moved."""

    code = 85
