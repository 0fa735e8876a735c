"""The base classes of all errors. See `errors` for the errors themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class HeadraceError(Exception):
    """Unknown server error."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self) or (type(self).__doc__ or "").strip()


class RetriableError(HeadraceError):
    """The request failed, but the same request may succeed later."""

    retriable: ClassVar[bool] = True


class InvalidRecords(HeadraceError):
    """The broker rejected a batch because of some of its records, which the error lists by their index."""

    def __init__(self, message: str = "", records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records
