"""What an audit may be told to check: `[[audit.checks]]`, each with its kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from headrace.model.durations import parse_duration, parse_time
from headrace.model.errors import HeadraceError
from headrace.model.names import check_topic_name


class _Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    topic: str


class ArchiveCheck(_Check, frozen=True, tag="archive"):
    """A topic against its archive, and the archive against its manifest."""

    archive: str

    @property
    def title(self) -> str:
        return f"archive of {self.topic}"


class ReplayCheck(_Check, frozen=True, tag="replay"):
    """A topic, or its archive, against another topic that should have the same records, or those of [from, to) as a
    replay may be told. `match`: whether the copies say by their headers which record they are."""

    target: str
    archive: str | None = None
    match: Literal["auto", "origin", "content"] = "auto"
    timestamps: bool = False
    from_time: str | None = None
    to_time: str | None = None
    from_offset: int = 0
    to_offset: int | None = None

    @property
    def title(self) -> str:
        return f"replay of {self.topic} to {self.target}"


class SettledCheck(_Check, frozen=True, tag="settled"):
    """A subscription against its topic; messages of the last `grace` may still be on their way."""

    subscription: str
    grace: str = "0s"

    @property
    def title(self) -> str:
        return f"{self.subscription} of {self.topic}"


class LogCheck(_Check, frozen=True, tag="log"):
    """A topic by itself."""

    @property
    def title(self) -> str:
        return f"log of {self.topic}"


Check: TypeAlias = ArchiveCheck | ReplayCheck | SettledCheck | LogCheck


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[audit]`."""

    checks: list[Check]


def problems_of(settings: AuditSettings) -> Iterator[str]:
    if not settings.checks:
        yield "checks: name at least one, such as {kind = 'log', topic = 'orders'}"
    for number, check in enumerate(settings.checks, 1):
        try:
            check_topic_name(check.topic)
            if isinstance(check, ReplayCheck):
                check_topic_name(check.target)
                for time in (check.from_time, check.to_time):
                    parse_time(time or "0")
                if check.target == check.topic and check.archive is None:
                    yield f"checks: check {number} compares {check.topic} with itself"
            if isinstance(check, SettledCheck):
                parse_duration(check.grace)
        except HeadraceError as error:
            yield f"checks: check {number}: {error.message}"
