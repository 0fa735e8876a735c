"""RabbitMQ with a durable classic queue; its confirms follow an fsync of its own batching."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.cache import run_tool
from bench.peers.packages import install_package
from bench.peers.peer import Consumes
from bench.processes import Launch
from bench.sockets import free_port

# The command on the path changes the user; this is the script that it calls.
_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMq:
    name = "rabbitmq"
    flushes = True
    consumes: Consumes = "prefetches"
    protocol = "amqp"
    brokers = 1
    topic_config: Mapping[str, str] = {}

    def missing(self) -> str | None:
        return None if _SCRIPT.exists() else "rabbitmq-server is not installed"

    def fetch(self) -> None:
        if self.missing():
            install_package("rabbitmq-server")

    def version(self) -> str:
        return "RabbitMQ " + run_tool(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]).strip()

    def launch(self, folder: Path, port: int) -> Launch:
        names = free_port()
        environment = {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        }
        # Its name server is started here, in our process group: left to itself it would outlive the run.
        return Launch(["sh", "-c", f"epmd -port {names} & exec {_SCRIPT}"], environment)

    def address(self, port: int) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port}/"
