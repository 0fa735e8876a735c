"""What all refusals have in common. See `errors` for the refusals themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class HeadraceError(Exception):
    """The root of all refusals; on the wire an unknown server error."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self) or (type(self).__doc__ or "").strip()


class RetriableError(HeadraceError):
    """The same request may succeed later."""

    retriable: ClassVar[bool] = True


class RecordRefused(HeadraceError):
    """A refusal of a batch that can name the records that caused it, by their index in it."""

    def __init__(self, message: str = "", records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records
