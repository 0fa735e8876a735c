"""Errors of leases and of the sessions of share consumers. Import them from `errors`."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError, RetriableError


class InvalidRecordState(HeadraceError):
    """The lease has expired or belongs to another member, or the message was already settled."""

    code = 121


class ShareSessionNotFound(RetriableError):
    """The share session does not exist; open a new one with epoch 0."""

    code = 122


class InvalidShareSessionEpoch(RetriableError):
    """The share session epoch is not the expected one; open a new session with epoch 0."""

    code = 123


class ShareSessionLimitReached(RetriableError):
    """The broker has reached its maximum number of share sessions. Retry later."""

    code = 133
