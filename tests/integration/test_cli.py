"""The commands against a real broker, called like by a user or a script."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until

HEADRACE = str(Path(sys.executable).with_name("headrace"))

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(broker: BrokerProcess) -> Run:
    """Run a command against the broker; check its exit code."""

    def run_command(
        *arguments: str, stdin: str | bytes | None = None, expect: int = 0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [HEADRACE, *arguments],
            input=stdin.decode("latin-1") if isinstance(stdin, bytes) else stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            encoding="latin-1" if isinstance(stdin, bytes) else "utf-8",
            timeout=PATIENCE_SECONDS,
            check=False,
            env=_environment(broker),
        )
        assert done.returncode == expect, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run_command


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_lifetime_of_a_topic(run: Run) -> None:
    run("topic", "create", "orders", "-p", "3", "-c", "retention.ms=60000")
    assert "already exists" in run("topic", "create", "orders", expect=1).stderr
    run("topic", "create", "orders", "--if-not-exists")
    assert rows(run("topic", "list")) == [{"topic": "orders", "partitions": 3, "replicas": 1, "internal": False}]
    run("topic", "alter", "orders", "--set", "max.message.bytes=5000", "--unset", "retention.ms")
    (described,) = rows(run("topic", "describe", "orders"))
    assert described["configs"] == {"max.message.bytes": "5000"}
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    run("topic", "add-partitions", "orders", "5", "--yes")
    run("topic", "delete", "orders", "--dry-run")
    assert rows(run("topic", "list"))[0]["partitions"] == 5
    run("topic", "delete", "orders", "--yes")
    assert rows(run("topic", "list")) == []
    assert "`headrace topic list`" in run("topic", "describe", "orders", expect=1).stderr


def test_records_are_produced_from_lines_and_consumed_in_every_format(run: Run) -> None:
    run("topic", "create", "orders", "-p", "1")
    assert run("produce", "orders", "-K:", stdin="a:1\nb:2\n").stderr == "2 records to orders\n"
    receipts = rows(run("produce", "orders", "three", "-k", "c", "-H", "from=test", "--receipts"))
    assert receipts == [{"topic": "orders", "partition": 0, "offset": 2}]
    assert run("consume", "orders", "-e").stdout == "1\n2\nthree\n"
    assert run("consume", "orders", "-e", "-K", "=").stdout == "a=1\nb=2\nc=three\n"
    assert run("consume", "orders", "-o", "-1", "-e").stdout == "three\n"
    assert run("consume", "orders", "-o", "+1", "-n", "1").stdout == "2\n"
    assert run("consume", "orders", "-n", "1", "-f", r"%t/%p/%o %k=%s\n").stdout == "orders/0/0 a=1\n"
    assert rows(run("consume", "orders", "-o", "2", "-e", "--json"))[0]["headers"] == [["from", "test"]]
    assert run("consume", "orders", "-o", "@2020-01-01", "-e").stdout == "1\n2\nthree\n"
    assert run("consume", "orders", "-o", "end", "-e").stdout == ""


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_survives_the_round_trip(run: Run, compression: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(500))
    run("topic", "create", "orders", "-p", "1")
    run("produce", "orders", "-z", compression, stdin=lines)
    assert run("consume", "orders", "-e").stdout == lines


def test_a_topic_is_copied_through_a_json_pipe(run: Run) -> None:
    run("topic", "create", "old", "-p", "2")
    run("topic", "create", "new", "-p", "2")
    run("produce", "old", "-K:", stdin=b"k1:\xff\xfe\nk2:text\n")
    envelopes = run("consume", "old", "-e", "--json").stdout
    assert '{"base64":"//4="}' in envelopes
    run("produce", "new", "--json", stdin=envelopes)
    copied = {(row["key"], json.dumps(row["value"])) for row in rows(run("consume", "new", "-e", "--json"))}
    assert copied == {("k1", '{"base64": "//4="}'), ("k2", '"text"')}
    assert "line 1" in run("produce", "new", "--json", stdin="not json\n", expect=1).stderr


def test_the_lines_of_a_large_file_are_produced_in_order(run: Run, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(30_000)))
    run("topic", "create", "orders", "-p", "1")
    run("produce", "orders", "-f", str(lines))
    assert run("consume", "orders", "-e").stdout == lines.read_text()


def test_trimming_deletes_the_oldest_records(run: Run) -> None:
    run("topic", "create", "orders", "-p", "1")
    run("produce", "orders", stdin="1\n2\n3\n4\n")
    (trial,) = rows(run("topic", "trim", "orders", "--before", "3", "--dry-run"))
    assert trial["deleted"] == 3
    run("topic", "trim", "orders", "--before", "3", "--yes")
    assert run("consume", "orders", "-e").stdout == "4\n"
    run("topic", "trim", "orders", "--yes")
    assert run("consume", "orders", "-e").stdout == ""


def test_a_group_resumes_at_its_committed_offset_and_its_lag_is_shown(run: Run) -> None:
    run("topic", "create", "orders", "-p", "2")
    run("produce", "orders", stdin="1\n2\n3\n")
    first = run("consume", "orders", "-g", "billing", "-n", "2").stdout.splitlines()
    rest = run("consume", "orders", "-g", "billing", "-n", "1").stdout.splitlines()
    assert sorted(first + rest) == ["1", "2", "3"]
    assert sum(row["lag"] for row in rows(run("group", "lag", "billing"))) == 0
    run("produce", "orders", stdin="4\n5\n")
    assert sum(row["lag"] for row in rows(run("group", "lag", "billing"))) == 2
    assert [(row["group"], row["state"]) for row in rows(run("group", "list"))] == [("billing", "Empty")]
    (described,) = rows(run("group", "describe", "billing"))
    assert (described["lag"], described["members"]) == (2, [])
    run("group", "delete", "billing", "--yes")
    assert rows(run("group", "list")) == []
    assert "`headrace group list`" in run("group", "describe", "billing", expect=1).stderr


@pytest.mark.parametrize("command", [("consume", "orders", "-g", "g"), ("tail", "orders")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watching_ends_cleanly_on_a_signal(
    run: Run, broker: BrokerProcess, command: tuple[str, ...], number: signal.Signals
) -> None:
    run("topic", "create", "orders", "-p", "1")
    run("produce", "orders", "first")
    watching = _start(broker, *command)
    assert watching.stdout is not None
    assert "first" in watching.stdout.readline()
    run("produce", "orders", "second")
    assert "second" in watching.stdout.readline()
    watching.send_signal(number)
    _, err = watching.communicate(timeout=PATIENCE_SECONDS)
    assert watching.returncode == 0
    assert "Traceback" not in err
    if command[0] == "consume":
        assert rows(run("group", "lag", "g"))[0]["committed"] == 2
        assert rows(run("group", "list"))[0]["state"] == "Empty"


def test_a_closed_output_pipe_is_not_an_error(run: Run, broker: BrokerProcess) -> None:
    run("topic", "create", "orders", "-p", "1")
    run("produce", "orders", stdin="".join(f"{number}\n" for number in range(20_000)))
    watching = _start(broker, "consume", "orders")
    assert watching.stdout is not None
    assert watching.stdout.readline() == "0\n"
    watching.stdout.close()
    run("produce", "orders", "more")
    assert watching.wait(PATIENCE_SECONDS) == 0
    assert watching.stderr is not None
    assert "Traceback" not in watching.stderr.read()
    watching.stderr.close()


def test_slowly_typed_input_is_sent_line_by_line(run: Run, broker: BrokerProcess) -> None:
    run("topic", "create", "orders", "-p", "1")
    typing = _start(broker, "produce", "orders", stdin=subprocess.PIPE)
    assert typing.stdin is not None
    typing.stdin.write("early\n")
    typing.stdin.flush()
    wait_until(lambda: run("consume", "orders", "-e").stdout == "early\n", "the first line has arrived")
    _, err = typing.communicate("late", timeout=PATIENCE_SECONDS)
    assert err == "2 records to orders\n"
    assert run("consume", "orders", "-e").stdout == "early\nlate\n"


def test_output_to_a_terminal_is_a_table(run: Run, broker: BrokerProcess) -> None:
    run("topic", "create", "orders", "-p", "1")
    ours, theirs = pty.openpty()
    subprocess.run([HEADRACE, "topic", "list"], stdout=theirs, check=True, env=_environment(broker))
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert [line.split() for line in shown.splitlines()] == [["TOPIC", "PARTITIONS", "REPLICAS"], ["orders", "1", "1"]]


def completed(broker: BrokerProcess, *words: str) -> list[str]:
    """Return what the shell offers for the last word."""
    shell = {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": f"headrace {' '.join(words)}"}
    done = subprocess.run(
        [HEADRACE],
        env=_environment(broker) | shell | {"COMP_CWORD": str(len(words))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


def test_the_shell_completes_names_of_topics_groups_and_subscriptions(run: Run, broker: BrokerProcess) -> None:
    for topic in ("orders", "organs", "audit"):
        run("topic", "create", topic)
    run("subscription", "create", "orders", "billing")
    run("subscription", "create", "audit", "archive")
    run("consume", "orders", "-g", "readers", "-e")
    assert completed(broker, "consume", "or") == ["orders", "organs"]
    assert completed(broker, "consume", "orders", "or") == ["organs"]
    assert completed(broker, "subscription", "pull", "orders", "") == ["billing"]
    assert completed(broker, "subscription", "describe", "") == ["archive", "billing"]
    assert completed(broker, "group", "describe", "r") == ["readers"]
    assert completed(broker, "top") == ["topic", "top"]
    assert "__acks.orders" in completed(broker, "topic", "describe", "__")
    broker.kill()
    assert completed(broker, "consume", "or") == []


def test_the_doctor_recognizes_a_healthy_and_a_stopped_broker(run: Run, broker: BrokerProcess, tmp_path: Path) -> None:
    healthy = rows(run("doctor", "--data", str(tmp_path)))
    assert {row["subject"] for row in healthy if row["verdict"] == "ok"} >= {"broker", "broker 1", "versions", "clock"}
    broker.terminate()
    dead = rows(run("doctor", "--data", str(tmp_path), expect=3))
    assert [row["subject"] for row in dead if row["verdict"] == "fail"] == ["broker"]
    assert "connection refused" in run("topic", "list", expect=3).stderr


def test_a_quick_bench_reports_results(run: Run) -> None:
    (produced,) = rows(run("bench", "produce", "--records", "2000", "--size", "100"))
    assert produced["records_per_second"] > 0
    (consumed,) = rows(run("bench", "consume"))
    assert consumed["records"] == 2000
    (some,) = rows(run("bench", "consume", "--records", "150"))
    assert some["records"] == 150
    (measured,) = rows(run("bench", "e2e", "--rate", "100", "--duration", "0.5"))
    assert measured["p99_ms"] >= measured["p50_ms"] > 0


def test_nothing_is_lost_when_the_broker_is_killed_while_producing(run: Run, broker: BrokerProcess) -> None:
    run("topic", "create", "orders", "-p", "1")
    writing = _start(broker, "produce", "orders", stdin=subprocess.PIPE)
    assert writing.stdin is not None
    writing.stdin.writelines(f"{number}\n" for number in range(1000))
    writing.stdin.flush()
    wait_until(lambda: "500\n" in run("consume", "orders", "-e").stdout, "some have arrived")
    broker.kill()
    writing.stdin.writelines(f"{number}\n" for number in range(1000, 2000))
    writing.stdin.flush()
    broker.start()
    _, err = writing.communicate(timeout=PATIENCE_SECONDS)
    assert err == "2000 records to orders\n"
    assert run("consume", "orders", "-e").stdout == "".join(f"{number}\n" for number in range(2000))


def _start(broker: BrokerProcess, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [HEADRACE, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(broker),
    )


def _environment(broker: BrokerProcess) -> dict[str, str]:
    return os.environ | {"HEADRACE_SERVER": broker.address}
