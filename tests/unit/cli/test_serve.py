"""A broker is there at once: what its start does not need is not imported, and the collector does not look at the rest.

The time from the start to the first acknowledged record is mostly the time of imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headrace.cli.main import main

# What only some brokers need, or need only later. (asyncio itself brings ssl and subprocess, and click inspect.)
NOT_AT_THE_START = (
    "aiohttp",
    "cramjam",
    "ctypes",
    "difflib",
    "gzip",
    "headrace.client",
    "headrace.doors.rest",
    "headrace.http.connection",
    "headrace.http.routes",
    "headrace.native.library",
    "headrace.push",
    "headrace.registry.sqlite_shared",
    "headrace.runtime.worker_process",
    "headrace.sdk",
    "headrace.server.brokers",
    "headrace.server.metrics.exposition",
    "headrace.server.metrics.queues",
    "headrace.server.rest",
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

# Everything that `headrace serve` does on its defaults until it would open its data folder.
SCRIPT = """
import gc, sys
import headrace.server.main
from headrace.cli.main import main

def serve(settings):
    settings.check()
    modules, frozen, enabled = list(sys.modules), gc.get_freeze_count(), gc.isenabled()
    import json
    print(json.dumps({"modules": modules, "frozen": frozen, "enabled": enabled}))
    return 0

headrace.server.main.serve = serve
sys.exit(main(["serve", "--set", "num.partitions=4"]))
"""


@pytest.fixture(scope="module")
def start() -> dict[str, Any]:
    told = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(told.stdout)
    return facts


@pytest.mark.parametrize("name", NOT_AT_THE_START)
def test_the_start_does_not_wait_for_what_it_does_not_need(start: dict[str, Any], name: str) -> None:
    assert [module for module in start["modules"] if module == name or module.startswith(name + ".")] == []


def test_of_the_commands_only_serve_is_imported(start: dict[str, Any]) -> None:
    commands = {module for module in start["modules"] if module.startswith("headrace.cli.")}
    assert commands == {f"headrace.cli.{name}" for name in ("listener_options", "main", "serve", "settings")}


def test_the_collector_works_again_and_leaves_out_what_was_imported(start: dict[str, Any]) -> None:
    assert start["enabled"]
    assert start["frozen"] > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kafka", "9092"), "--kafka must be HOST:PORT"),
        (("--advertised", "host"), "--advertised must be HOST:PORT"),
        (("--http-tls-cert", __file__), "require each other"),
        (("--config", __file__), "is not valid TOML"),
        (("--node-id", str(1 << 31)), "'--node-id'"),
    ],
    ids=lambda value: value[0],
)
def test_what_cannot_be_meant_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert line.endswith("; see `headrace serve --help`")
