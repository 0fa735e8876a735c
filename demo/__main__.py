"""Run the demo: python -m demo [--report FILE]."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.messaging import produce, redrive, work
from demo.pipelines import archive, replay, report, transform
from demo.runner import DemoRunner, StepFailed

SECTIONS = (produce, work, redrive, archive, transform, report, replay)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Demonstrate Headrace on one machine.")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="the file of the report page")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with TemporaryDirectory(prefix="headrace-demo-") as folder:
        demo = DemoRunner(Path(folder), sys.stdout)
        demo.explain(f"The demo works in {folder}, which is deleted at the end, except for the report page.")
        try:
            demo.serve(*free_ports(2))
            for section in SECTIONS:
                section(demo)
            options.report.write_bytes((demo.folder / "report.html").read_bytes())
        except (StepFailed, subprocess.SubprocessError) as failure:
            print(f"\nThe demo failed: {failure}", file=sys.stderr)
            return 1
        finally:
            demo.close()
    demo.explain(f"That took {time.monotonic() - started:.0f} s. The report: {options.report.resolve().as_uri()}")
    return 0


def free_ports(count: int) -> list[int]:
    """Bind all ports at the same time, so that they are distinct."""
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
