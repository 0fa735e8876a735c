"""The output of clients, and the history that it makes for the rules of `headrace.testkit.anomalies`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.testkit.history import CommitOperation, History, OffsetFetchOperation, PolledRecords, SendOperation

Log = list[tuple[int, bytes]]
"""A partition as (offset, value)."""


class Transcript:
    """A client's output, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.entries: list[list[Any]] = []
        self._path, self._position = path, 0

    def read_on(self) -> list[list[Any]]:
        """Return the new entries; leave an incomplete line for the next call."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.entries += new
        return new

    @property
    def errors(self) -> list[str]:
        return [entry[2] for entry in self.entries if entry[0] == "error"]

    @property
    def is_complete(self) -> bool:
        return bool(self.entries) and self.entries[-1][0] == "end"


def history_of(transcripts: Mapping[str, Transcript], groups: Mapping[str, str], final: Mapping[int, Log]) -> History:
    """Return the history of one topic from its clients. `groups`: the group of each client that reads for one."""
    history = History(final=dict(final))
    for client, transcript in transcripts.items():
        _add(history, client, groups.get(client, ""), transcript.entries)
    # The clients wrote concurrently; the rules need the order of time.
    history.sends.sort(key=lambda send: send.began)
    history.polls.sort(key=lambda poll: poll.moment)
    history.commits.sort(key=lambda commit: commit.began)
    history.found.sort(key=lambda found: found.ended)
    return history


def _add(history: History, client: str, group: str, entries: list[list[Any]]) -> None:
    sends: dict[str, SendOperation] = {}
    commits: dict[tuple[int, int], CommitOperation] = {}
    for entry in entries:
        match entry:
            case ["send", began, partition, value]:
                sends[value] = SendOperation(client, partition, began, value=value.encode())
                history.sends.append(sends[value])
            case ["ack", ended, _, value, offset]:
                sends[value].ended, sends[value].offset = ended, offset
            case ["poll", moment, partition, records]:
                received = tuple((offset, value.encode()) for offset, value in records)
                history.polls.append(PolledRecords(client, partition, moment, received, group))
            case ["commit", began, partition, offset]:
                commits[began, partition] = CommitOperation(client, partition, began, group=group, offset=offset)
                history.commits.append(commits[began, partition])
            case ["committed", ended, began, partition]:
                commits[began, partition].ended = ended
            case ["found", began, ended, partition, offset]:
                history.found.append(OffsetFetchOperation(client, partition, began, ended, group=group, offset=offset))
