"""The start of a broker is fast: it imports only what it needs, and excludes imported objects from garbage collection.

Imports take most of the time from the start to the first acknowledged record.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headrace.cli.main import main

# Modules that only some brokers need, or only later. (asyncio imports ssl and subprocess, click imports inspect.)
NOT_AT_THE_START = (
    "aiohttp",
    "cramjam",
    "ctypes",
    "difflib",
    "gzip",
    "headrace.client",
    "headrace.protocols.rest",
    "headrace.http.connection",
    "headrace.http.routes",
    "headrace.native.library",
    "headrace.push",
    "headrace.registry.sqlite_shared",
    "headrace.runtime.worker_process",
    "headrace.sdk",
    "headrace.server.broker_processes",
    "headrace.server.metrics.exposition",
    "headrace.server.metrics.queues",
    "headrace.server.rest_builder",
    "headrace.testkit",
    "httptools",
    "ipaddress",
    "json",
    "kazoo",
    "lz4",
    "mmap",
    "multiprocessing",
    "pickle",
    "pyroaring",
    "random",
    "re2",
    "secrets",
    "shutil",
    "tempfile",
    "tomllib",
    "urllib",
    "wsproto",
    "zstandard",
)

# Everything that `headrace serve` does with its defaults before it opens its data folder.
SCRIPT = """
import gc, sys
import headrace.server.serve
from headrace.cli.main import main

def serve(settings):
    settings.check()
    modules, frozen, enabled = list(sys.modules), gc.get_freeze_count(), gc.isenabled()
    import json
    print(json.dumps({"modules": modules, "frozen": frozen, "enabled": enabled}))
    return 0

headrace.server.serve.serve = serve
sys.exit(main(["serve", "--set", "num.partitions=4"]))
"""


@pytest.fixture(scope="module")
def start() -> dict[str, Any]:
    finished = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(finished.stdout)
    return facts


@pytest.mark.parametrize("name", NOT_AT_THE_START)
def test_unneeded_modules_are_not_imported_at_start(start: dict[str, Any], name: str) -> None:
    assert [module for module in start["modules"] if module == name or module.startswith(name + ".")] == []


def test_only_the_serve_command_is_imported(start: dict[str, Any]) -> None:
    commands = {module for module in start["modules"] if module.startswith("headrace.cli.")}
    assert commands == {f"headrace.cli.{name}" for name in ("main", "options", "servers", "servers.serve")}


def test_the_garbage_collector_is_enabled_and_excludes_imports(start: dict[str, Any]) -> None:
    assert start["enabled"]
    assert start["frozen"] > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kafka", "9092"), "--kafka must be HOST:PORT"),
        (("--advertised", "host"), "--advertised must be HOST:PORT"),
        (("--http-tls-cert", __file__), "require each other"),
        (("--config", __file__), "is not valid TOML"),
        (("--node-id", str(1 << 31)), "'--node-id'"),
    ],
    ids=lambda value: value[0],
)
def test_invalid_options_are_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert line.endswith("; see `headrace serve --help`")
