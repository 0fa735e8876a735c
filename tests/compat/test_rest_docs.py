"""The lines of docs/rest.md, run as they stand there against a fresh broker, but for its port."""

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
    # One partition: then the ids in the page are those that come.
    folder = tmp_path_factory.mktemp("docs")
    (folder / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    broker = BrokerProcess(folder, {"num.partitions": "1"}).start()
    yield broker
    broker.stop()


def test_every_line_of_the_page_works(broker: BrokerProcess) -> None:
    assert len(LINES) > 15
    for line in LINES:
        command = shlex.split(line.replace("127.0.0.1:8080", f"127.0.0.1:{broker.http_port}"))
        assert command[:2] == ["curl", "-s"]
        told = subprocess.run(
            [*command, "-w", "\n%{http_code}"],
            cwd=broker.folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        ).stdout
        assert told.rpartition("\n")[2] in ("200", "201", "204"), f"{line}\n{told}"
