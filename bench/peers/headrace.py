"""Headrace itself, as it lies in a source folder: the working tree, or another commit laid out beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.cache import cached, run_tool
from bench.processes import Launch
from bench.sockets import free_port

# Kafka's default for `flush.messages`: acknowledge from the page cache.
NEVER_FLUSH = {"flush.messages": "9223372036854775807"}


class Headrace:
    protocol = "kafka"

    def __init__(self, name: str, source: Path, *, flushes: bool) -> None:
        self.name = name
        self.flushes = flushes
        self.topic_config: Mapping[str, str] = {} if flushes else NEVER_FLUSH
        self._source = source

    @classmethod
    def of_ref(cls, ref: str, repository: Path) -> Headrace:
        commit = run_tool(["git", "rev-parse", "--verify", f"{ref}^{{commit}}"], cwd=repository).strip()

        def lay_out(part: Path) -> None:
            archive = part / "archive.tar"
            run_tool(["git", "archive", "-o", str(archive), commit, "src"], cwd=repository)
            run_tool(["tar", "-xf", str(archive), "-C", str(part)])

        return cls(f"headrace@{ref}", cached(f"headrace-{commit}", lay_out) / "src", flushes=True)

    def missing(self) -> str | None:
        main = self._source / "headrace" / "cli" / "main.py"
        return None if main.exists() else f"{main} does not exist"

    def fetch(self) -> None:
        """It is here; but compile it, as an installation does, or its first start alone would pay for that."""
        run_tool([sys.executable, "-m", "compileall", "-q", str(self._source)])

    def version(self) -> str:
        text = run_tool([sys.executable, "-c", _CALL, "version"], environment=self._environment())
        return f"Headrace {json.loads(text)['headrace']}"

    def launch(self, folder: Path, port: int) -> Launch:
        listen = ["--kafka", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
        arguments = ["serve", "--data", str(folder / "data"), *listen, "--set", "num.partitions=4"]
        return Launch([sys.executable, "-c", _CALL, *arguments], self._environment())

    def address(self, port: int) -> str:
        return f"127.0.0.1:{port}"

    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self._source)}


# What the installed command does; this way any source folder can be run by the same interpreter.
_CALL = "from headrace.cli.main import main; main()"
