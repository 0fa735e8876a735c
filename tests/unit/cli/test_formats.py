"""Values and formats of the command line: start positions, record formats, tables, errors."""

from __future__ import annotations

import asyncio
import errno
import os
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.diagnostics.doctor import check_clock, check_data
from headrace.cli.failure import BrokersUnreachable, CommandFailed, failure_of_error
from headrace.cli.options import parse_settings
from headrace.cli.output import print_rows, to_json
from headrace.cli.record_format import compile_format, envelope_of, read_envelope
from headrace.cli.start_position import FROM_END, FROM_START, StartPosition, parse_start_position
from headrace.cli.topics.produce import read_lines
from headrace.client.errors import Unreachable
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.model.errors import GroupNotEmpty, HeadraceError, UnknownTopicOrPartition
from headrace.testkit.world import World

RECORD = ConsumedRecord("orders", 3, 7, 1700000000000, b"k", b"v", [("a", b"1"), ("b", None)])


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("start", FROM_START),
        ("beginning", FROM_START),
        ("end", FROM_END),
        ("500", StartPosition("offset", 500)),
        ("+500", StartPosition("after_start", 500)),
        ("-10", StartPosition("before_end", 10)),
        ("@1700000000000", StartPosition("time", 1700000000000)),
        ("@2023-11-14T22:13:20Z", StartPosition("time", 1700000000000)),
    ],
)
def test_start_positions(text: str, where: StartPosition) -> None:
    assert parse_start_position(text) == where


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 15, 10, 0).astimezone(UTC)
    assert parse_start_position("@2026-11-15T10:00") == StartPosition("time", int(local.timestamp() * 1000))


@pytest.mark.parametrize("text", ["", "now", "+", "-x", "@soon", "1.5", "@"])
def test_invalid_positions_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_start_position(text)


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        (r"%t %p %o %k %s\n", b"orders 3 7 k v\n"),
        (r"%T\t%h", b"1700000000000\ta=1,b="),
        (r"%K/%S %%", b"1/1 %"),
        ("plain", b"plain"),
    ],
)
def test_formats(template: str, printed: bytes) -> None:
    assert compile_format(template)(RECORD) == printed


@pytest.mark.parametrize("template", ["%x", "100%", "\\q", "\\"])
def test_unknown_fields_are_rejected(template: str) -> None:
    with pytest.raises(ValueError, match=r"unknown .* known are"):
        compile_format(template)


MAYBE_BYTES = st.none() | st.binary(max_size=20)


@given(key=MAYBE_BYTES, value=MAYBE_BYTES, headers=st.lists(st.tuples(st.text(max_size=5), MAYBE_BYTES), max_size=3))
def test_produce_reads_the_json_that_consume_prints(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    record = RECORD._replace(key=key, value=value, headers=headers)
    assert read_envelope(to_json(envelope_of(record)).encode()) == (value, key, headers)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"value": {"id": 1}}', b'{"id":1}'),
        (b'{"value": 5}', b"5"),
        (b'{"value": null}', None),
        (b'{"value": "x", "headers": {"a": "b"}, "offset": 3}', b"x"),
    ],
)
def test_hand_written_json_records(line: bytes, value: bytes | None) -> None:
    assert read_envelope(line).value == value


@pytest.mark.parametrize(
    "line", [b"", b"x", b"[]", b"{}", b'{"value": {"base64": "!"}}', b'{"value": 1, "headers": [1]}']
)
def test_invalid_json_records_are_rejected(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_envelope(line)


def test_rows_are_printed_as_a_table_or_as_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"topic": "a", "lag": 5, "who": None}, {"topic": "bcd", "lag": 12, "who": ["x", "y"]}]
    print_rows(rows, ("topic", "lag", "who"), "table")
    assert capsys.readouterr().out == "TOPIC  LAG  WHO\na        5  -\nbcd     12  x,y\n"
    print_rows(rows, ("topic",), "json")
    assert capsys.readouterr().out.splitlines()[0] == '{"topic":"a","lag":5,"who":null}'


@pytest.mark.parametrize(
    ("error", "kind", "step"),
    [
        (Unreachable("cannot connect to x:1"), BrokersUnreachable, "--server"),
        (UnknownTopicOrPartition("There is no topic x."), CommandFailed, "topic list"),
        (GroupNotEmpty(), CommandFailed, "group describe"),
        (FileNotFoundError(2, "No such file", "x.toml"), CommandFailed, "x.toml"),
    ],
)
def test_every_error_names_the_next_step(error: HeadraceError | OSError, kind: type[CommandFailed], step: str) -> None:
    failure = failure_of_error(error)
    assert type(failure) is kind
    assert step in failure.format_message()


def test_settings_are_name_value_pairs() -> None:
    assert parse_settings(["a=1", "b=x=y", "a=2"]) == {"a": "2", "b": "x=y"}


@given(text=st.lists(st.binary(max_size=10).filter(lambda line: b"\n" not in line and b"\r" not in line)))
def test_lines_are_read_completely_from_a_pipe(text: list[bytes]) -> None:
    async def scenario() -> list[bytes]:
        reader, writer = os.pipe()
        os.write(writer, b"\n".join(text))
        os.close(writer)
        try:
            return [line async for line in read_lines(reader)]
        finally:
            os.close(reader)

    expected = text[:-1] if text and not text[-1] else text
    assert asyncio.run(scenario()) == expected


def test_a_healthy_data_folder_is_ok_and_the_probe_is_removed() -> None:
    world = World(1)
    world.disk.make_directory("/data")
    findings = check_data("/data/not/yet/there", world.disk, world.clock)
    assert [finding.verdict for finding in findings if finding.subject != "space"] == ["ok", "ok"]
    assert world.disk.list("/data") == []
    world.close()


def test_an_unwritable_folder_fails_with_the_next_step() -> None:
    world = World(1)
    world.disk.make_directory("/data")
    world.disk.fail_next("append", "*", errno.EACCES)
    (finding,) = check_data("/data", world.disk, world.clock)
    assert finding.verdict == "fail"
    assert finding.next_step
    world.close()


def test_a_clock_before_the_release_date_fails() -> None:
    class Stopped:
        def monotonic(self) -> float:
            return 0.0

        def now_ms(self) -> int:
            return 0

    assert check_clock(Stopped()).verdict == "fail"
