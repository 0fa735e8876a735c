"""What a query on Headrace can fail with, beyond what the brokers and the options say."""

from __future__ import annotations

from headrace.model.errors import HeadraceError


class DataLost(HeadraceError):
    """Records that the query has not read yet are no longer in the log."""


class BadValue(HeadraceError):
    """A record's value is not of the format that the query was told."""
