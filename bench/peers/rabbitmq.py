"""RabbitMQ with a durable classic queue; it confirms after an fsync, which several messages share.

Over AMQP, or over the HTTP API of the management plugin, which is loaded only in this case because of its cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.cache import install_package, run_tool
from bench.peers.peer import Consumes
from bench.processes import Launch, free_port

# The command on the path would change the user; this is the script that it runs.
_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMq:
    flushes = True
    brokers = 1
    topic_config: Mapping[str, str] = {}

    def __init__(self, name: str, *, http: bool = False) -> None:
        self.name = name
        self.protocol = "amqp-http" if http else "amqp"
        self.consumes: Consumes = "asks" if http else "prefetches"
        self._http = http

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
            "RABBITMQ_NODE_PORT": str(free_port() if self._http else port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        }
        if self._http:
            (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
            config = folder / "rabbitmq.conf"
            config.write_text(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n")
            environment["RABBITMQ_CONFIG_FILE"] = str(config)
        # Start its name server in our process group; otherwise RabbitMQ starts one that outlives the run.
        return Launch(["sh", "-c", f"epmd -port {names} & exec {_SCRIPT}"], environment)

    def address(self, port: int) -> str:
        return f"http://127.0.0.1:{port}" if self._http else f"amqp://guest:guest@127.0.0.1:{port}/"
