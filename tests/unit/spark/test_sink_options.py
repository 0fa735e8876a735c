"""The options of a write, and the errors of invalid ones."""

from __future__ import annotations

import pytest

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.sink_options import SinkOptions, parse
from headrace.wire.batches.compression import ZSTD

BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_the_defaults() -> None:
    assert parse(BROKERS, streaming=True) == SinkOptions("localhost:9092")


def test_names_are_case_insensitive_and_every_option_is_used() -> None:
    options = {
        "KAFKA.Bootstrap.Servers": "a:1,b:2",
        "TOPIC": "orders",
        "Delivery": "AT-LEAST-ONCE",
        "transactiontimeout": "90s",
        "keepTimestamp": "True",
        "batchBytes": "4096",
        "kafka.compression.type": "zstd",
        "txnAppId": "nightly",
        "txnVersion": "17",
    }
    taken = SinkOptions(
        "a:1,b:2",
        "orders",
        exactly_once=False,
        transaction_timeout_seconds=90.0,
        keep_timestamp=True,
        batch_bytes_max=4096,
        compression=ZSTD,
        app_id="nightly",
        version=17,
    )
    assert parse(options, streaming=False) == taken


def test_the_checkpoint_location_is_kept_for_the_digest_of_a_batch() -> None:
    assert parse(BROKERS | {"checkpointLocation": "/srv/c"}, streaming=True) == SinkOptions(
        "localhost:9092", checkpoint="/srv/c"
    )


@pytest.mark.parametrize("name", ["kafka.acks", "kafka.linger.ms", "includeHeaders"])
def test_options_of_a_kafka_job_are_ignored(name: str) -> None:
    assert parse(BROKERS | {name: "1"}, streaming=True) == SinkOptions("localhost:9092")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topik": "t"}, "there is no option 'topik'; did you mean topic"),
        ({"zzz": "t"}, "there is no option 'zzz'$"),
        ({"subscribe": "t"}, "use topic for a sink"),
        ({"kafka.transactional.id": "t"}, "names its transactions after the query"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "neither TLS nor SASL"),
        ({"kafka.security.protocol": "SSL"}, "neither TLS nor SASL"),
        ({"topic": "no such/name"}, "no such/name"),
        ({"delivery": "maybe"}, "delivery is 'maybe'; it can be exactly-once or at-least-once"),
        ({"transactionTimeout": "long"}, "'long' is not a duration"),
        ({"batchBytes": "10"}, "batchBytes is '10'; it must be a whole number from 1024 to 104857600"),
        ({"kafka.compression.type": "rar"}, "kafka.compression.type is 'rar'"),
        ({"txnAppId": "x"}, "txnAppId and txnVersion must be set together"),
        ({"txnAppId": "a#b", "txnVersion": "1"}, "txnAppId is 'a#b'"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion is '-1'"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(HeadraceError, match=sentence):
        parse(BROKERS | options, streaming=False)


def test_brokers_are_required_and_a_stream_takes_no_application_id() -> None:
    with pytest.raises(InvalidConfig, match=r"kafka\.bootstrap\.servers is missing"):
        parse({"topic": "t"}, streaming=False)
    with pytest.raises(InvalidConfig, match="txnAppId has no meaning in a streaming query"):
        parse(BROKERS | {"txnAppId": "a", "txnVersion": "1"}, streaming=True)
