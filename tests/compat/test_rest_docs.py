"""Run the commands of docs/rest.md against a new broker; only the port is replaced."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"
LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # One partition, so that messages get the ids in the page.
    folder = tmp_path_factory.mktemp("docs")
    (folder / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    broker = BrokerProcess(folder, {"num.partitions": "1"}).start()
    yield broker
    broker.stop()


def test_every_command_of_the_page_works(broker: BrokerProcess) -> None:
    assert len(LINES) > 15
    for line in LINES:
        command = shlex.split(line.replace("127.0.0.1:8080", f"127.0.0.1:{broker.http_port}"))
        assert command[:2] == ["curl", "-s"]
        output = subprocess.run(
            [*command, "-w", "\n%{http_code}"],
            cwd=broker.folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        ).stdout
        assert output.rpartition("\n")[2] in ("200", "201", "204"), f"{line}\n{output}"
