"""The command: choose workloads and peers, run them, write tables, JSON and a plot."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine, report, schedule
from bench.failure import BenchFailure
from bench.peers import known_peers
from bench.peers.peer import Peer
from bench.plot import draw
from bench.workloads import all_workloads
from bench.workloads.workload import Workload

_RESULTS = Path(__file__).parent / "results"
_ALWAYS_FETCHED = (
    "kafka"  # prefix of the peers that are always fetched; others are fetched if they or their workloads are requested
)


def main() -> int:
    options = _parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave through the clean-up, as Ctrl-C does
    try:
        workloads = _choose_workloads(options)
        peers, missing = _choose_peers(options, workloads)
        with TemporaryDirectory(prefix="headrace-bench-", dir=options.data) as base:
            run = _measure(options, workloads, peers, missing, Path(base))
    except BenchFailure as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    _write(run, options)
    return 1 if any(result.failures for result in run.results) else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmark Headrace against other brokers.")
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help="names, or prefixes up to a hyphen: " + ", ".join(all_workloads()),
    )
    parser.add_argument("--only", metavar="NAMES", default="", help="the same, separated by commas")
    parser.add_argument(
        "--peers", metavar="NAMES", default="", help="peers besides Headrace; `all` fetches all of them"
    )
    parser.add_argument("--ref", help="measure Headrace of this commit against the working tree, without other peers")
    parser.add_argument("--rounds", type=int, help="measured rounds (3; quick: 1)")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the load, to test the benchmark itself")
    parser.add_argument("--scale", type=float, help="factor for the load of the workloads (1; quick: 0.05)")
    parser.add_argument("--name", default="bench", help="name of the result files")
    parser.add_argument("--out", type=Path, help="folder of the result files (bench/results; quick: no files)")
    parser.add_argument("--data", type=Path, help="where the servers keep their data (the temporary folder)")
    parser.add_argument("--touch-gb", type=float, help="size of the page cache to warm up before the run (8; quick: 0)")
    options = parser.parse_args(arguments)
    options.workloads += [name for name in options.only.split(",") if name]
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.scale = options.scale or (0.05 if options.quick else 1.0)
    options.out = options.out or (None if options.quick else _RESULTS)
    if options.touch_gb is None:
        options.touch_gb = 0 if options.quick else 8
    return options


def _choose_peers(options: argparse.Namespace, workloads: list[Workload]) -> tuple[dict[str, Peer], dict[str, str]]:
    """Return the peers of these workloads that can be measured, and the reasons why others cannot."""
    peers_by_name = known_peers(options.ref)
    known = {
        name: peer for name, peer in peers_by_name.items() if any(schedule.is_measured(w, name) for w in workloads)
    }
    requested = [name for name in options.peers.split(",") if name]
    unknown = set(requested) - set(peers_by_name) - {"all"}
    if unknown:
        raise BenchFailure(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(peers_by_name)}")
    chosen, missing = {}, {}
    for name, peer in known.items():
        own = name.startswith("headrace")
        wanted = own or (name in requested if requested and "all" not in requested else options.ref is None)
        if not wanted:
            continue
        if own or requested or options.workloads or name.startswith(_ALWAYS_FETCHED):
            try:
                peer.fetch()
            except BenchFailure as failure:
                missing[name] = str(failure)
                continue
        if why := peer.missing():
            missing[name] = why
        else:
            chosen[name] = peer
    return chosen, missing


def _choose_workloads(options: argparse.Namespace) -> list[Workload]:
    known = all_workloads()
    chosen: list[Workload] = []
    for requested in options.workloads or known:
        named = [requested] if requested in known else [name for name in known if name.startswith(f"{requested}-")]
        if not named:
            raise BenchFailure(f"no such workload: {requested}; there are {', '.join(known)}")
        chosen += [known[name] for name in named]
    return chosen


def _measure(
    options: argparse.Namespace,
    workloads: list[Workload],
    peers: Mapping[str, Peer],
    missing: Mapping[str, str],
    base: Path,
) -> report.Run:
    for name, why in missing.items():
        _log(f"missing: {name}: {why}")
    facts = machine.machine_facts(base)
    versions = {name: peer.version() for name, peer in peers.items()}
    machine.warm_page_cache(base, int(options.touch_gb * 1e9))
    results = []
    for result in schedule.run(workloads, peers, schedule.Plan(options.rounds, options.scale, base, _log)):
        print(report.result_section(result, peers), flush=True)
        results.append(result)
    return report.Run(
        date=datetime.date.today().isoformat(),
        command=shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        rounds=options.rounds,
        scale=options.scale,
        machine=facts,
        versions=versions,
        missing=missing,
        results=results,
        peers=peers,
    )


def _write(run: report.Run, options: argparse.Namespace) -> None:
    stem = f"{run.date}-{options.name}"
    print(report.summary(run))
    if options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    cores = run.machine["cores"]
    caption = f"{run.date}, {run.command}, {run.rounds} rounds, {cores} cores shared by load and server"
    for suffix, content in (
        ("md", report.as_markdown(run, f"{stem}.svg")),
        ("json", report.as_json(run)),
        ("svg", draw(run.results, caption)),
    ):
        (options.out / f"{stem}.{suffix}").write_text(content)
        _log(f"wrote {os.path.relpath(options.out / f'{stem}.{suffix}')}")


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


sys.exit(main())
