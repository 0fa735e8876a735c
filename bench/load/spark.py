"""Send commands to the Spark session of a server (`sparkload`)."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from bench.failure import BenchFailure
from bench.server import Server

_SESSION_SECONDS_MAX = 120
_COMMAND_SECONDS_MAX = 600
_POLL_SECONDS = 0.1


def run_spark_command(server: Server, command: str, **settings: Any) -> dict[str, Any]:
    """Execute a command and return its measurements. Waits for the session, which starts after the broker."""
    where = ("127.0.0.1", _port(server))
    with socket.create_connection(where, _COMMAND_SECONDS_MAX) as connection, connection.makefile("rw") as lines:
        lines.write(json.dumps({"do": command, **settings}) + "\n")
        lines.flush()
        try:
            line = lines.readline()
        except TimeoutError as error:
            raise BenchFailure(f"{server.peer.name}: {command} took over {_COMMAND_SECONDS_MAX} s") from error
    if not line:
        server.process.check_alive()
        raise BenchFailure(f"{server.peer.name}: Spark closed the connection during {command}")
    response: dict[str, Any] = json.loads(line)
    if "failure" in response:
        raise BenchFailure(f"{server.peer.name}: {command}: {response['failure']}")
    return response


def _port(server: Server) -> int:
    path = server.folder / "spark.port"
    deadline = time.monotonic() + _SESSION_SECONDS_MAX
    while not path.exists():
        server.process.check_alive()
        if time.monotonic() > deadline:
            raise BenchFailure(f"{server.peer.name}: no Spark session within {_SESSION_SECONDS_MAX} s")
        time.sleep(_POLL_SECONDS)
    return int(path.read_text())
