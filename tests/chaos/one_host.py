"""`headrace serve --brokers N`: brokers as children of one process, which share a host, a disk and SQLite.

The harness starts and stops the parent, and the parent restarts its children. Their process ids are looked up for each
use, because a killed child is another process a second later.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.chaos.nodes import BrokerNode
from tests.integration.process import wait_until


@dataclass
class HostNode(BrokerNode):
    """The parent process. Its ports are those of the first child; each child has the next ones."""

    count: int = 0

    def command(self) -> list[str]:
        words = super().command()
        for option in ("--node-id", "--rack", "--registry"):
            at = words.index(option)
            del words[at : at + 2]
        return [*words, "--brokers", str(self.count)]

    def kill(self) -> None:
        """Kill the parent and its children; the parent first, because it would restart its children."""
        children = self.children(recursive=True)
        super().kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        wait_until(lambda: not any(map(_is_alive, children)), f"the brokers of {self.name} are gone")

    def children(self, *, recursive: bool = False) -> list[psutil.Process]:
        """Return the children; `recursive`: and the worker processes of the brokers."""
        if self.process is None:
            return []
        try:
            return [*psutil.Process(self.process.pid).children(recursive)]
        except psutil.NoSuchProcess:
            return []

    def child(self, number: int) -> psutil.Process | None:
        """Return the broker with this node id, if it is running."""
        for child in self.children():
            with suppress(psutil.Error):  # it has ended meanwhile
                words = child.cmdline()
                if "--node-id" in words and words[words.index("--node-id") + 1] == str(number):
                    return child
        return None


@dataclass
class ChildBroker(BrokerNode):
    """One broker, which faults kill and pause; only its parent starts it."""

    parent: HostNode | None = None

    @property
    def data(self) -> Path:
        assert self.parent is not None
        return self.parent.data / f"broker-{self.number}"

    @property
    def is_running(self) -> bool:
        return self._child() is not None

    def launch(self) -> None:
        """The parent starts its children."""

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        child = self._child()
        if child is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def _child(self) -> psutil.Process | None:
        assert self.parent is not None
        return self.parent.child(self.number)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
