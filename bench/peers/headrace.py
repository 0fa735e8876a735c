"""Headrace from a source folder: the working tree, or another commit that is checked out to the cache.

One broker over the Kafka protocol or HTTP, or a cluster of several brokers with a ZooKeeper server, whose cost is
included.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cache import cached, run_tool
from bench.peers.peer import SESSION_SECONDS, Consumes, cluster_topic_config
from bench.processes import Launch, free_port

# Kafka's default for `flush.messages`: acknowledge from the page cache.
NEVER_FLUSH = {"flush.messages": "9223372036854775807"}


class Headrace:
    def __init__(
        self,
        name: str,
        source: Path,
        *,
        flushes: bool,
        consumes: Consumes = "asks",
        brokers: int = 1,
        http: bool = False,
    ) -> None:
        self.name = name
        self.protocol = "rest" if http else "kafka"
        self.flushes = flushes
        self.consumes: Consumes = consumes
        self.brokers = brokers
        self.topic_config: Mapping[str, str] = {**({} if flushes else NEVER_FLUSH), **cluster_topic_config(brokers)}
        self._source = source

    @classmethod
    def of_ref(cls, name: str, ref: str, repository: Path, *, brokers: int = 1, http: bool = False) -> Headrace:
        commit = run_tool(["git", "rev-parse", "--verify", f"{ref}^{{commit}}"], cwd=repository).strip()

        def check_out(part: Path) -> None:
            archive = part / "archive.tar"
            run_tool(["git", "archive", "-o", str(archive), commit, "src"], cwd=repository)
            run_tool(["tar", "-xf", str(archive), "-C", str(part)])

        source = cached(f"headrace-{commit}", check_out) / "src"
        return cls(f"{name}@{ref}", source, flushes=True, brokers=brokers, http=http)

    def missing(self) -> str | None:
        command = "main.py" if self.brokers == 1 else "zookeeper.py"
        commands = self._source / "headrace" / "cli"
        # Another commit may have it in another folder.
        return None if any(commands.rglob(command)) else f"{commands} has no {command}"

    def fetch(self) -> None:
        """Compile the modules, as an installation does, so that this is not part of the first start."""
        run_tool([sys.executable, "-m", "compileall", "-q", str(self._source)])

    def version(self) -> str:
        text = run_tool([*_CALL, "version"], environment=self._environment())
        return f"Headrace {json.loads(text)['headrace']}"

    def launch(self, folder: Path, port: int) -> Launch:
        if self.brokers == 1:
            return Launch(self._serve(folder / "data", port, 1, []), self._environment())
        registry = free_port()
        joining = ["--registry", f"zookeeper://127.0.0.1:{registry}/bench", "--session-timeout", str(SESSION_SECONDS)]
        brokers = [
            self._serve(folder / f"data-{number}", free_port() if number > 1 else port, number, joining)
            for number in range(1, self.brokers + 1)
        ]
        zookeeper = [*_CALL, "zookeeper", "--data", str(folder / "zookeeper"), "--listen", f"127.0.0.1:{registry}"]
        return Launch(brokers[0], self._environment(), other_commands=[*brokers[1:], zookeeper])

    def address(self, port: int) -> str:
        return f"http://127.0.0.1:{port}" if self.protocol == "rest" else f"127.0.0.1:{port}"

    def _serve(self, data: Path, port: int, number: int, joining: Sequence[str]) -> list[str]:
        ports = (free_port(), port) if self.protocol == "rest" else (port, free_port())
        listen = ["--kafka", f"127.0.0.1:{ports[0]}", "--http", f"127.0.0.1:{ports[1]}"]
        node = ["--node-id", str(number), "--set", "num.partitions=4", *joining]
        return [*_CALL, "serve", "--data", str(data), *listen, *node]

    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self._source)}


# The installed command, but with the source folder from PYTHONPATH.
_CALL = [sys.executable, "-c", "from headrace.cli.main import main; main()"]
