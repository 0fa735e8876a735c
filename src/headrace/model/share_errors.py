"""The refusals of leases and of the sessions by which Kafka's share consumers take them. Import them from `errors`."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError, RetriableError


class InvalidRecordState(HeadraceError):
    """The message is not leased by this member any more, or was settled already."""

    code = 121


class ShareSessionNotFound(RetriableError):
    """There is no such share session; open one with epoch 0."""

    code = 122


class InvalidShareSessionEpoch(RetriableError):
    """The share session expects another epoch; open a new one with epoch 0."""

    code = 123


class ShareSessionLimitReached(RetriableError):
    """The broker has as many share sessions as it may have."""

    code = 133
