"""The load generators: C on librdkafka, C on plain sockets, Go for queues and HTTP; compiled on first use.

- librdkafka is the library inside the confluent-kafka wheel, which is pinned with the other requirements. The wheel has
  no header, therefore rdkafka.h is in this folder.
- A compiled load generator is cached under the digest of its sources.
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
class LoadProcess:
    """A load generator that runs in the background."""

    process: subprocess.Popen[str]

    def result(self) -> dict[str, Any]:
        try:
            out, errors = self.process.communicate("\n", timeout=_LOAD_SECONDS_MAX)
        finally:
            self.process.kill()  # has an effect only after a timeout or an interruption
        if self.process.returncode != 0:
            raise BenchFailure(f"load {' '.join(map(str, self.process.args))} failed: {errors[-1000:]}")  # type: ignore[arg-type]
        response: dict[str, Any] = json.loads(out)
        return response

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def start_rkload(
    mode: str, bootstrap: str, topic: str, records: int, size: int, partitions: int, settings: dict[str, str]
) -> LoadProcess:
    arguments = [mode, bootstrap, topic, str(records), str(size), str(partitions)]
    return _start([str(rkload()), *arguments, *(f"{name}={value}" for name, value in settings.items())])


def start_reqload(
    port: int, topic: str, requests: int, size: int, connections: int, in_flight: int, partitions: int
) -> LoadProcess:
    """Return when all connections have been opened and used once; the requests are sent when `result` is called."""
    numbers = [requests, size, connections, in_flight, partitions]
    running = _start([str(reqload()), str(port), topic, *map(str, numbers)])
    assert running.process.stdout is not None
    if running.process.stdout.readline() != "connected\n":
        running.result()
    return running


class InteractiveLoad:
    """A load generator that executes commands, one at a time; its main.go lists them."""

    def __init__(self, program: Path, protocol: str, address: str, queue: str, size: int) -> None:
        self._running = _start([str(program), protocol, address, queue, str(size)])

    def run_command(self, command: str) -> dict[str, Any]:
        """Execute a command and return its measurements."""
        process = self._running.process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the process has exited; its error is reported below
            process.stdin.write(command + "\n")
            process.stdin.flush()
        if not select.select([process.stdout], [], [], _COMMAND_SECONDS_MAX)[0]:
            self.close()
            raise BenchFailure(f"load {' '.join(map(str, process.args))} did not complete {command}")  # type: ignore[arg-type]
        response = process.stdout.readline()
        if not response:
            self._running.result()
        measured: dict[str, Any] = json.loads(response)
        return measured

    def close(self) -> None:
        self._running.kill()


class QueueLoad(InteractiveLoad):
    """Load on a queue over the peer's native protocol."""

    def __init__(self, protocol: str, address: str, queue: str, size: int) -> None:
        super().__init__(queueload(), protocol, address, queue, size)


class RestLoad(InteractiveLoad):
    """Load over HTTP."""

    def __init__(self, protocol: str, address: str, queue: str, size: int) -> None:
        super().__init__(restload(), protocol, address, queue, size)


def _start(command: list[str]) -> LoadProcess:
    pipe = subprocess.PIPE
    return LoadProcess(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))


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
    """Ignore the output of a successful build."""
