"""How far a replay came: the brokers know, because the number of a commit is the last offset that it replayed.

The same stands in a file, for when the brokers have forgotten a bundle that was idle for days, together with what was
to be replayed: if that is changed midway, neither to go on nor to begin again would give what is wanted.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from headrace.client.bundles import Member, abort_bundle, commit_bundle, committed_sequence
from headrace.columns.scan import link
from headrace.model.errors import InvalidConfig

_FILE = "replay.json"


class ReplayChanged(InvalidConfig):
    """The settings say to replay other records than those that were begun with."""


class Selection(msgspec.Struct, frozen=True):
    """Which records; what may be changed later (the end) is not in it."""

    filter: str | None
    from_time: str | None
    from_offset: int | None
    keep_partitions: bool


class Route(msgspec.Struct, frozen=True):
    """A partition on its way into a topic; the ids tell topics apart that had the same name one after another."""

    topic: str
    topic_id: str
    partition: int
    target: str
    target_id: str

    @property
    def key(self) -> str:
        identity = "\n".join((self.topic, self.topic_id, self.target, self.target_id))
        return f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}-{self.partition}"


class _Account(msgspec.Struct):
    selection: Selection
    replayed_to: dict[str, int] = {}


class ReplayAccount:
    """The account of one pipeline."""

    def __init__(self, brokers: str, name: str, work: Path, selection: Selection) -> None:
        self._brokers = brokers
        self._name = name
        self.work = work
        self._path = work / _FILE
        self._account = _Account(selection)
        if self._path.exists():
            self._account = msgspec.json.decode(self._path.read_bytes(), type=_Account)
        if self._account.replayed_to and self._account.selection != selection:
            raise ReplayChanged(
                f"pipeline {name!r} has replayed with other settings of filter, from and keep_partitions before; "
                "give it another name, or take the changes back"
            )
        self._account.selection = selection

    def bundle(self, route: Route) -> str:
        return f"replay-{self._name}-{route.key}"

    def position(self, route: Route) -> int:
        """The first offset that was not replayed yet; 0 if none was."""
        bundle = self.bundle(route)
        told = link(self._brokers).call(lambda cluster: committed_sequence(cluster, bundle))
        return max(told + 1, self._account.replayed_to.get(route.key, 0))

    def commit(self, route: Route, start: int, end: int, member: Member | None) -> bool:
        """Make [start, end) part of the target, as the member has written it. False if somebody else has replayed here
        meanwhile: what the member wrote is aborted then."""
        if member is None:
            return True
        # Whoever commits aborts what others have open. So if nothing was committed since the member began, as this
        # look tells, nothing can be before it commits.
        if self.position(route) > start:
            link(self._brokers).call(lambda cluster: abort_bundle(cluster, self.bundle(route), [member]))
            return False
        return link(self._brokers).call(lambda cluster: commit_bundle(cluster, self.bundle(route), end - 1, [member]))

    def replayed(self, route: Route, end: int) -> None:
        """Remember it; the commit comes before."""
        self._account.replayed_to[route.key] = end
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".tmp")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(self._account))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)
