"""The command: python -m demo [--report FILE]."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.pipelines import archive, replay, report, transform
from demo.stage import NotAsTold, Stage
from demo.story import produce, redrive, work

CHAPTERS = (produce, work, redrive, archive, transform, report, replay)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description="The whole story on one machine.")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="where the report page goes")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    with TemporaryDirectory(prefix="headrace-demo-") as folder:
        stage = Stage(Path(folder), sys.stdout)
        stage.say(f"Everything below happens in {folder}, and is gone afterwards but for the report page.")
        try:
            stage.serve(*free_ports(2))
            for chapter in CHAPTERS:
                chapter(stage)
            given.report.write_bytes((stage.folder / "report.html").read_bytes())
        except (NotAsTold, subprocess.SubprocessError) as failure:
            print(f"\nThe demo failed: {failure}", file=sys.stderr)
            return 1
        finally:
            stage.close()
    stage.say(f"That took {time.monotonic() - began:.0f} s. The report: {given.report.resolve().as_uri()}")
    return 0


def free_ports(count: int) -> list[int]:
    """All at once, so that no two are the same."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
