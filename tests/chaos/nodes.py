"""A process of the cluster on its host, a broker or a ZooKeeper server, which faults stop and restart.

The processes end with the harness: each asks the kernel to be killed when its parent dies.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.clocks import WrongClock
from tests.chaos.disks import SmallDisk
from tests.chaos.namespaces import Host
from tests.integration.process import PATIENCE_SECONDS, wait_until

from headrace.server.zookeeper import MAIN_CLASS, find_jars, find_java

WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
_TICK_MS = 500


@dataclass
class Node:
    """The folder has the output: `out.txt` of the latest start, `log.txt` of all."""

    name: str
    host: Host
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    is_meant_to_run: bool = False
    excused: str = ""
    """a pattern of log lines that look like bugs but come from an injected fault"""

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        assert self.process is None, f"{self.name} is already running"
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [*self.host.prefix, *WITH_PARENT, *self.command()]
        with (self.folder / "out.txt").open("wb") as out, self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
            )
        self.is_meant_to_run = True

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.is_running, f"{self.name} ended at its start:\n{self.log_tail()}"
            return self.is_ready()

        wait_until(ready, f"{self.name} is ready")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def reap(self) -> int | None:
        """Return the exit code, if the process has ended by itself since the last call."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        self.process = None
        return code

    def kill(self) -> None:
        self.is_meant_to_run = False
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)
            self.process = None

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Stop the process with SIGTERM; return the exit code, which is 0 after a clean stop."""
        assert self.process is not None
        self.is_meant_to_run = False
        self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end on SIGTERM:\n{self.log_tail()}") from None
        self.process = None
        return code

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            assert self.process is not None
            os.kill(self.process.pid, number)

    @property
    def log_path(self) -> Path:
        return self.folder / "log.txt"

    def excuses(self, line: str) -> bool:
        return bool(self.excused) and re.search(self.excused, line) is not None

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class BrokerNode(Node):
    """`disk` is None where small disks are not possible; the data is then in the folder. `clock` is None where clocks
    cannot be set wrong."""

    number: int = 0
    kafka_port: int = 9092
    http_port: int = 8080
    registry: str = ""
    session_seconds: float = 6.0
    settings: dict[str, str] = field(default_factory=dict)
    disk: SmallDisk | None = None
    clock: WrongClock | None = None

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.kafka_port}"

    @property
    def data(self) -> Path:
        return (self.folder if self.disk is None else self.disk.folder) / "data"

    def command(self) -> list[str]:
        options = [f"--set={name}={value}" for name, value in self.settings.items()]
        return [
            str(Path(sys.executable).with_name("headrace")),
            "serve",
            *("--data", str(self.data)),
            *("--kafka", self.address),
            *("--http", f"{self.host.address}:{self.http_port}"),
            *("--node-id", str(self.number)),
            *("--rack", f"rack-{self.number}"),
            *("--registry", self.registry),
            *("--session-timeout", str(self.session_seconds)),
            "--insecure",
            *options,
        ]

    def is_ready(self) -> bool:
        text = (self.folder / "out.txt").read_text(errors="replace")
        return any(line.startswith("ready") for line in text.splitlines())


@dataclass
class ZooKeeperNode(Node):
    """One server of the ensemble; `peers` are all servers."""

    number: int = 0
    client_port: int = 2181
    quorum_port: int = 2888
    election_port: int = 3888
    peers: list[ZooKeeperNode] = field(default_factory=list, repr=False)

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.client_port}"

    def command(self) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{self.number}\n")
        lines = [
            f"dataDir={data}",
            f"clientPortAddress={self.host.address}",
            f"clientPort={self.client_port}",
            f"tickTime={_TICK_MS}",
            "initLimit=20",
            "syncLimit=5",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *(
                f"server.{peer.number}={peer.host.address}:{peer.quorum_port}:{peer.election_port}"
                for peer in self.peers
                if len(self.peers) > 1
            ),
        ]
        config = self.folder / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        return [
            *(find_java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dorg.apache.logging.log4j.level=WARN", "-cp", os.pathsep.join(find_jars()), MAIN_CLASS, str(config)),
        ]

    def is_ready(self) -> bool:
        return self.mode() is not None

    @property
    def is_leader(self) -> bool:
        return self.mode() in ("leader", "standalone")

    def mode(self) -> str | None:
        """Return the mode that the server reports; None if it does not respond."""
        try:
            with socket.create_connection((self.host.address, self.client_port), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                text = b""
                while more := connection.recv(4096):
                    text += more
        except OSError:
            return None
        modes = [line.removeprefix("Mode: ") for line in text.decode().splitlines() if line.startswith("Mode: ")]
        return modes[0] if modes else None
