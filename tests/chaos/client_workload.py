"""A part of the workload: clients of one kind, with topics and rules of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ClientWorkload(ABC):
    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def supervise(self) -> None:
        """Read what the clients printed, and start those again that may end."""

    @abstractmethod
    def stop_writers(self) -> None:
        """The cluster is healed: stop the clients that add work."""

    @abstractmethod
    def wait_finished(self) -> None:
        """Until the others have done all the work that is there. Raises `Stuck`."""

    @abstractmethod
    def stop_readers(self) -> None: ...

    @abstractmethod
    def check(self) -> list[str]:
        """One sentence for each thing that is wrong; all clients have ended."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """For the report."""

    def kill(self) -> None:  # noqa: B027, most parts have no such processes
        """End the processes that are not among `Processes`."""
