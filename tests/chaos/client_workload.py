"""The base class of the workloads: clients of one kind, with their own topics and checks."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ClientWorkload(ABC):
    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def supervise(self) -> None:
        """Read the output of the clients, and restart those that may end."""

    @abstractmethod
    def stop_writers(self) -> None:
        """Stop the clients that add work, after the cluster is healed."""

    @abstractmethod
    def wait_finished(self) -> None:
        """Wait until the other clients have caught up. Raises `Stuck`."""

    @abstractmethod
    def stop_readers(self) -> None: ...

    @abstractmethod
    def check(self) -> list[str]:
        """Return one sentence for each violation; all clients have ended."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return the counts for the report."""

    def kill(self) -> None:  # noqa: B027, most parts have no such processes
        """Kill the processes that are not among `Processes`."""
