"""`headrace produce`: waits, time-outs and large records."""

from __future__ import annotations

import pytest
from tests.unit.cli.scripted_command import run_command
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker

from headrace.model.errors import MessageTooLarge, NotEnoughReplicas
from headrace.wire import apis
from headrace.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

MODULE = "headrace.cli.topics.produce"


def rejected(code: int, message: str) -> object:
    def response(request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=data.index, error_code=code, error_message=message)
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    return response


def test_produce_says_that_it_waits_for_a_producer_id_and_ends_by_its_timeout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.INIT_PRODUCER_ID, Fault.SILENCE)

    assert run_command(monkeypatch, MODULE, prepare, "produce", "orders", "x", "--timeout", "5s") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "waiting for a producer id from the broker"
    assert lines[-1].startswith("error: orders[")
    assert "did not acknowledge a batch within 5 s" in lines[-1]


def test_produce_says_why_records_are_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.PRODUCE, *[rejected(NotEnoughReplicas.code, "1 in sync, 2 required")] * 1000)

    assert run_command(monkeypatch, MODULE, prepare, "produce", "orders", "x", "-p", "0", "--timeout", "5s") == 1
    waiting, error = capsys.readouterr().err.splitlines()
    assert waiting == "waiting for the acknowledgement of orders[0]: 1 in sync, 2 required"
    assert error.startswith("error: orders[0] did not acknowledge a batch within 5 s: 1 in sync, 2 required; ")


def test_a_fast_produce_says_nothing_about_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, MODULE, lambda _: None, "produce", "orders", "x") == 0
    assert capsys.readouterr().err == "1 record to orders\n"


def test_the_broker_decides_how_large_a_record_may_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = "x" * 3_000_000
    assert run_command(monkeypatch, MODULE, lambda _: None, "produce", "orders", record) == 0

    def prepare(broker: ScriptedBroker) -> None:
        broker.script(apis.PRODUCE, rejected(MessageTooLarge.code, "the batch has 3000074 bytes"))

    assert run_command(monkeypatch, MODULE, prepare, "produce", "orders", record) == 1
    assert "the batch has 3000074 bytes; raise the limit with `headrace topic alter" in capsys.readouterr().err
