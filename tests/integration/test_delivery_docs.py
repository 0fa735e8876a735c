"""The programs of docs/delivery.md: the page contains them verbatim, and they keep their guarantees when killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, outside_broker, wait_until
from tests.integration.records import create_topic, produce

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "examples" / "delivery").glob("*.py"))
ROUNDS, ROUND_RECORDS = 3, 300


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    outside = outside_broker()
    if outside is not None:
        return outside
    broker: BrokerProcess = request.getfixturevalue("broker")
    return broker.address


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_the_page_contains_the_program_verbatim(program: Path) -> None:
    page = (ROOT / "docs" / "delivery.md").read_text()
    assert f"```python\n{program.read_text()}```\n" in page


def test_the_page_contains_no_other_program() -> None:
    page = (ROOT / "docs" / "delivery.md").read_text()
    assert page.count("```python\n") == len(PROGRAMS)


def test_every_program_ends_by_itself_when_all_records_are_copied(address: str, tmp_path: Path) -> None:
    source, *targets = (f"ends-{name}-{tmp_path.name}-{os.getpid()}" for name in ("source", *map(str, range(4))))
    for topic in (source, *targets):
        create_topic(address, topic, 1)
    produce(address, source, [b"hello"])
    commands = [
        [sys.executable, str(program), address, source, target]
        for program, target in zip(PROGRAMS, targets, strict=True)
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command in commands]
    try:
        for process in running:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, output.decode()
    finally:
        for process in running:
            process.kill()
    with closing(Consumer({"bootstrap.servers": address, "group.id": "reads"})) as consumer:
        for target in targets:
            consumer.assign([TopicPartition(target, 0, 0)])
            (message,) = consumer.consume(1, timeout=PATIENCE_SECONDS)
            assert message.value() == b"HELLO"


def doubled(copied: Counter[bytes]) -> list[bytes]:
    return [value for value, count in copied.items() if count > 1]


def test_at_most_once_duplicates_nothing(address: str, tmp_path: Path) -> None:
    copied = copied_with_kills(address, "at_most_once", tmp_path, lambda values: b"LAST" in values)
    assert doubled(copied) == []


def test_at_least_once_loses_nothing(address: str, tmp_path: Path) -> None:
    written = all_written("at_least_once")
    copied = copied_with_kills(address, "at_least_once", tmp_path, lambda values: written <= values.keys())
    assert copied.keys() == written


@pytest.mark.parametrize("program", ["exactly_once", "exactly_once_aiokafka"])
def test_exactly_once_neither_loses_nor_duplicates(address: str, tmp_path: Path, program: str) -> None:
    written = all_written(program)
    copied = copied_with_kills(address, program, tmp_path, lambda values: written <= values.keys())
    assert copied == Counter(written)


def all_written(program: str) -> set[bytes]:
    values = {value.upper() for number in range(ROUNDS) for value in values_of(program, number)}
    return values | {b"LAST"}


def values_of(program: str, number: int) -> list[bytes]:
    return [b"%s %d-%d" % (program.encode(), number, one) for one in range(ROUND_RECORDS)]


def copied_with_kills(
    address: str, program: str, folder: Path, complete: Callable[[Counter[bytes]], bool]
) -> Counter[bytes]:
    """Return the output of the program, which is killed once per round during its work."""
    source, target = (f"{program}-{side}-{folder.name}-{os.getpid()}" for side in ("source", "target"))
    create_topic(address, source, 1)
    create_topic(address, target, 1)
    worker = "0" if program.endswith("aiokafka") else f"worker-{folder.name}"
    command = [
        sys.executable,
        str(ROOT / "examples" / "delivery" / f"{program}.py"),
        address,
        source,
        target,
        worker,
        "inf",
    ]
    copied: Counter[bytes] = Counter()
    with closing(Consumer({"bootstrap.servers": address, "group.id": "reads", "fetch.wait.max.ms": 20})) as consumer:
        consumer.assign([TopicPartition(target, 0, 0)])

        def more_than(count: int) -> Callable[[], bool]:
            return lambda: copied.total() > count

        def run_until(condition: Callable[[], bool], what: str) -> None:
            def holds() -> bool:
                assert process.poll() is None, f"the program ended:\n{log.read_text()}"
                for message in consumer.consume(1000, timeout=0.02):
                    if (error := message.error()) is None:
                        copied[message.value() or b""] += 1
                    else:
                        assert error.retriable(), error
                return condition()

            with killed_in_the_end(command, folder / "program.log") as (process, log):
                wait_until(holds, what)

        for number in range(ROUNDS):
            produce(address, source, values_of(program, number))
            run_until(more_than(copied.total()), "the program copies")
        produce(address, source, [b"last"])
        run_until(lambda: complete(copied), "the program has copied what it promises")
    return copied


@contextmanager
def killed_in_the_end(command: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with log.open("ab") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process, log
        finally:
            process.kill()
