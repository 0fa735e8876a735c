"""The command line: `python -m tests.chaos --minutes 30 --seed 1`, or `--clean` after a killed harness."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos import report
from tests.chaos.cluster import clean
from tests.chaos.run import run
from tests.chaos.run_result import Options
from tests.chaos.schedule import KINDS

REGISTRY_HELP = "sqlite: one host that runs `headrace serve --brokers N`, instead of one for each broker"
LONG_MINUTES = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--session-timeout", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--brokers", type=int, help="4, or 3 on one host; with four, brokers are also drained")
    parser.add_argument("--registry", choices=("zookeeper", "sqlite"), default="zookeeper", help=REGISTRY_HELP)
    parser.add_argument("--rate", type=float, default=300.0, help="records in a second")
    parser.add_argument("--queue-rate", type=float, default=25.0, help="messages in a second")
    parser.add_argument("--servers", type=int, default=3, choices=(1, 3), help="of ZooKeeper")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=(), metavar="KIND", help="only these faults")
    parser.add_argument(
        "--spark",
        action=argparse.BooleanOptionalAction,
        help=f"let a Spark query copy a topic; by default in runs of {LONG_MINUTES} minutes and more",
    )
    parser.add_argument("--report", type=Path, default=report.ROOT / "docs" / "chaos", metavar="DIR")
    parser.add_argument("--keep", action="store_true", help="keep logs, histories and data even without violations")
    parser.add_argument("--clean", action="store_true", help="clear away what a killed harness left, and do no more")
    options = parser.parse_args()
    on_one_host = options.registry == "sqlite"
    for cleared in clean():
        sys.stderr.write(f"cleared away: {cleared}\n")
    if options.clean:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # raise an exception that runs the clean-up, as Ctrl-C does
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    sys.stderr.write(f"seed {options.seed}, {options.minutes:g} minutes, in {folder}\n")
    result = run(
        Options(
            options.seed,
            options.minutes * 60,
            folder,
            options.session_timeout,
            brokers=options.brokers or (3 if on_one_host else 4),
            servers=0 if on_one_host else options.servers,
            rate=options.rate,
            queue_rate=options.queue_rate,
            kinds=tuple(options.kinds),
            spark=options.minutes >= LONG_MINUTES if options.spark is None else options.spark,
        )
    )
    page = report.write(result, options.report, f"{options.minutes:g}-minutes-seed-{options.seed}")
    for violation in result.violations:
        sys.stderr.write(f"VIOLATION {violation}\n")
    sys.stderr.write(f"{page}\n")
    if result.violations or options.keep:
        sys.stderr.write(f"kept for a closer look: {folder}\n")
    else:
        shutil.rmtree(folder)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
