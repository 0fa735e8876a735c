"""`headrace transaction`: its output, its requests, and dry runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.cli.scripted_command import run_command
from tests.unit.client.admin.test_transaction_admin import (
    coordinated_by,
    listing,
    markers_written,
    open_at,
    requests,
    transaction,
)
from tests.unit.client.scripted_cluster import ScriptedBroker

from headrace.cli.main import main
from headrace.wire import apis
from headrace.wire.messages.transactions import BundleMember, DescribeBundleResponse, InitProducerIdResponse

MODULE = "headrace.cli.transaction"
HANGING = ("--topic", "orders", "--partition", "0", "--start-offset", "12")


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_broker_filters_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    requested: list[ScriptedBroker] = []

    def prepare(broker: ScriptedBroker) -> None:
        requested.append(broker)
        broker.script(apis.LIST_TRANSACTIONS, listing("tx"))

    options = ("--state", "ongoing", "--producer-id", "7", "--older-than", "1h30m")
    assert run_command(monkeypatch, MODULE, prepare, "transaction", "list", *options) == 0
    assert rows(capsys) == [{"transactional_id": "tx", "state": "Ongoing", "producer_id": 7, "coordinator": 1}]
    (request,) = requests(requested[0], apis.LIST_TRANSACTIONS)
    assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [7])
    assert request.duration_filter == 5_400_000


def test_describe_shows_the_partitions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.FIND_COORDINATOR, coordinated_by(1))
        broker.script(apis.DESCRIBE_TRANSACTIONS, transaction("Ongoing", 0, 1))

    assert run_command(monkeypatch, MODULE, prepare, "transaction", "describe", "tx") == 0
    (row,) = rows(capsys)
    assert (row["state"], row["producer_epoch"], row["timeout_ms"]) == ("Ongoing", 3, 1234)
    assert row["partitions"] == [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}]
    assert run_command(monkeypatch, MODULE, prepare, "transaction", "describe", "tx", "-o", "table") == 0
    assert "timeout ms        1234" in capsys.readouterr().out


def test_a_bundle_is_shown_with_its_last_joint_commit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.FIND_COORDINATOR, coordinated_by(1))
        members = [BundleMember("headrace-bundle:spark-1#0", 7, 3)]
        broker.script(apis.DESCRIBE_BUNDLE, DescribeBundleResponse(sequence=17, members=members))

    member = {"transactional_id": "headrace-bundle:spark-1#0", "producer_id": 7, "producer_epoch": 3}
    assert run_command(monkeypatch, MODULE, prepare, "transaction", "bundle", "spark-1") == 0
    assert rows(capsys) == [{"bundle": "spark-1", "sequence": 17, "members": [member]}]
    assert run_command(monkeypatch, MODULE, prepare, "transaction", "bundle", "spark-1", "-o", "table") == 0
    shown = capsys.readouterr().out
    assert "sequence          17" in shown
    assert "headrace-bundle:spark-1#0" in shown


def test_an_unknown_bundle_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.FIND_COORDINATOR, coordinated_by(1))
        broker.script(apis.DESCRIBE_BUNDLE, DescribeBundleResponse())

    assert run_command(monkeypatch, MODULE, prepare, "transaction", "bundle", "spark-1") == 1
    assert "has no joint commit" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "fenced"), [(("--yes",), True), (("--dry-run",), False)])
def test_abort_fences_the_producer_unless_it_is_a_dry_run(
    options: tuple[str, ...], fenced: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested: list[ScriptedBroker] = []

    def prepare(broker: ScriptedBroker) -> None:
        requested.append(broker)
        broker.script(apis.FIND_COORDINATOR, coordinated_by(1), coordinated_by(1))
        broker.script(apis.DESCRIBE_TRANSACTIONS, transaction("Ongoing", 0))
        broker.script(apis.INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=7, producer_epoch=4))

    assert run_command(monkeypatch, MODULE, prepare, "transaction", "abort", "tx", *options) == 0
    assert requested[0].count(apis.INIT_PRODUCER_ID) == fenced
    assert f"producer 7 with epoch 3 {'is' if fenced else 'would be'} fenced" in capsys.readouterr().err


def test_hanging_transactions_are_shown_with_the_options_to_abort_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.DESCRIBE_PRODUCERS, open_at(12))
        broker.script(apis.LIST_TRANSACTIONS, listing())

    assert run_command(monkeypatch, MODULE, prepare, "transaction", "find-hanging", "--topic", "orders") == 0
    captured = capsys.readouterr()
    row = json.loads(captured.out)
    assert (row["topic"], row["partition"], row["start_offset"], row["producer_id"]) == ("orders", 0, 12, 7)
    assert "--start-offset" in captured.err


@pytest.mark.parametrize(("options", "written"), [(("--yes",), 1), (("--dry-run",), 0)])
def test_a_hanging_transaction_is_aborted_by_a_marker_unless_it_is_a_dry_run(
    options: tuple[str, ...], written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[ScriptedBroker] = []

    def prepare(broker: ScriptedBroker) -> None:
        requested.append(broker)
        broker.script(apis.DESCRIBE_PRODUCERS, open_at(12))
        broker.script(apis.LIST_TRANSACTIONS, listing())
        broker.script(apis.WRITE_TXN_MARKERS, markers_written())

    assert run_command(monkeypatch, MODULE, prepare, "transaction", "abort", *HANGING, *options) == 0
    assert requested[0].count(apis.WRITE_TXN_MARKERS) == written


def test_abort_fails_where_no_transaction_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.DESCRIBE_PRODUCERS, open_at(11))

    assert run_command(monkeypatch, MODULE, prepare, "transaction", "abort", *HANGING, "--yes") == 1
    assert "find-hanging" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["abort"],
        ["abort", "tx"],  # no terminal to confirm
        ["abort", *HANGING],
        ["abort", "tx", *HANGING, "--yes"],
        ["abort", "--topic", "orders", "--yes"],
        ["list", "--state", "Odd"],
        ["list", "--older-than", "soon"],
    ],
)
def test_wrong_usage_is_rejected_before_a_request_is_sent(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transaction", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
