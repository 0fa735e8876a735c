"""The load generators: C on librdkafka, C on plain sockets, Go for the queues and for HTTP; compiled on first use.

librdkafka is the one inside the confluent-kafka wheel, so it is pinned with the other requirements and
current; the wheel has no header, hence rdkafka.h beside this file. A compiled load is cached by the digest
of its sources.
"""

from __future__ import annotations

import hashlib
import json
import select
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka

from bench.cache import cached, run_tool
from bench.failure import BenchFailure

_HERE = Path(__file__).parent
_LOAD_SECONDS_MAX = 1200
_COMMAND_SECONDS_MAX = 180


@dataclass(frozen=True, slots=True)
class Running:
    """A load that was started and not waited for."""

    process: subprocess.Popen[str]

    def result(self) -> dict[str, Any]:
        try:
            out, errors = self.process.communicate("\n", timeout=_LOAD_SECONDS_MAX)
        finally:
            self.process.kill()  # it has ended, unless it took too long or the run was interrupted
        if self.process.returncode != 0:
            raise BenchFailure(f"load {' '.join(map(str, self.process.args))} failed: {errors[-1000:]}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(out)
        return answer

    def abandon(self) -> None:
        self.process.kill()
        self.process.communicate()


def start_rkload(
    mode: str, bootstrap: str, topic: str, records: int, size: int, partitions: int, settings: dict[str, str]
) -> Running:
    arguments = [mode, bootstrap, topic, str(records), str(size), str(partitions)]
    return _start([str(rkload()), *arguments, *(f"{name}={value}" for name, value in settings.items())])


def start_reqload(
    port: int, topic: str, requests: int, size: int, connections: int, in_flight: int, partitions: int
) -> Running:
    """Returns when all connections stand and were used; the requests flow when the result is asked for."""
    numbers = [requests, size, connections, in_flight, partitions]
    running = _start([str(reqload()), str(port), topic, *map(str, numbers)])
    assert running.process.stdout is not None
    if running.process.stdout.readline() != "connected\n":
        running.result()
    return running


class ToldLoad:
    """A load that does one thing after another as it is told; its main.go says which commands there are."""

    def __init__(self, program: Path, protocol: str, address: str, queue: str, size: int) -> None:
        self._running = _start([str(program), protocol, address, queue, str(size)])

    def do(self, command: str) -> dict[str, Any]:
        """One command to its end; what it measured."""
        process = self._running.process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, and says why below
            process.stdin.write(command + "\n")
            process.stdin.flush()
        if not select.select([process.stdout], [], [], _COMMAND_SECONDS_MAX)[0]:
            self.close()
            raise BenchFailure(f"load {' '.join(map(str, process.args))} did not end its {command}")  # type: ignore[arg-type]
        answer = process.stdout.readline()
        if not answer:
            self._running.result()
        measured: dict[str, Any] = json.loads(answer)
        return measured

    def close(self) -> None:
        self._running.abandon()


class QueueLoad(ToldLoad):
    """By a peer's own protocol, with its own client."""

    def __init__(self, protocol: str, address: str, queue: str, size: int) -> None:
        super().__init__(queueload(), protocol, address, queue, size)


class RestLoad(ToldLoad):
    """By HTTP."""

    def __init__(self, protocol: str, address: str, queue: str, size: int) -> None:
        super().__init__(restload(), protocol, address, queue, size)


def _start(command: list[str]) -> Running:
    pipe = subprocess.PIPE
    return Running(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))


@cache
def rkload() -> Path:
    library = _bundled_librdkafka()
    link = [str(library), f"-Wl,-rpath,{library.parent}", "-lpthread"]
    return _compile_c("rkload", ["rkload.c", "rdkafka.h"], link, library.name)


@cache
def reqload() -> Path:
    return _compile_c("reqload", ["reqload.c"], [], "")


@cache
def queueload() -> Path:
    return _compile_go("queueload")


@cache
def restload() -> Path:
    return _compile_go("restload")


def librdkafka_version() -> str:
    return run_tool([str(rkload()), "version"]).strip()


def _bundled_librdkafka() -> Path:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka-*.so*"))
    if not found:
        raise BenchFailure(f"no librdkafka in {folder}: install confluent-kafka from its wheel")
    return found[0]


def _compile_c(name: str, sources: list[str], link: list[str], salt: str) -> Path:
    paths = [_HERE / source for source in sources]

    def compile_into(part: Path) -> None:
        run_tool(["cc", "-O2", "-Wall", "-o", str(part / name), str(paths[0]), *link])

    return cached(f"{name}-{_digest(paths, salt + str(link))}", compile_into) / name


def _compile_go(name: str) -> Path:
    source = _HERE / name
    digest = _digest(sorted(source.iterdir()), "")
    folder = cached(
        f"{name}-{digest}",
        lambda part: _discard(run_tool(["go", "build", "-o", str(part), "."], cwd=source)),
    )
    return folder / name


def _digest(paths: list[Path], salt: str) -> str:
    return hashlib.sha256(salt.encode() + b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _discard(_: str) -> None:
    """What a build printed is of interest only when it failed."""
