from __future__ import annotations

import pickle

import pytest

from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark import sink_options
from headrace.spark.options import OffsetSpec, TopicSelection, parse, parse_columns, problems_of

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
ORDERS = {**BROKERS, "subscribe": "orders"}


def refusal(options: dict[str, str], *, streaming: bool = False) -> str:
    with pytest.raises(HeadraceError) as caught:
        parse(options, streaming=streaming)
    return caught.value.message


def test_option_names_are_case_insensitive() -> None:
    assert parse({"KAFKA.bootstrap.Servers": "a:1", "SUBSCRIBE": "b, a"}, streaming=False).subscription.topics == (
        "a",
        "b",
    )


def test_by_default_a_batch_is_read_whole_and_a_stream_from_the_end() -> None:
    batch, stream = parse(ORDERS, streaming=False), parse(ORDERS, streaming=True)
    assert (batch.starting, batch.ending) == (OffsetSpec("earliest"), OffsetSpec("latest"))
    assert stream.starting == OffsetSpec("latest")


def test_an_unknown_option_is_rejected_with_the_most_similar_one() -> None:
    assert refusal({**ORDERS, "startingOfsets": "earliest"}).endswith("did you mean startingOffsets?")
    assert "there is no option 'zzz'" in refusal({**ORDERS, "zzz": "1"})
    assert "did you mean kafka.max.poll.records?" in refusal({**ORDERS, "kafka.max.pol.records": "1"})


def test_options_of_a_kafka_consumer_are_ignored() -> None:
    options = {**ORDERS, "kafka.max.poll.records": "7", "kafka.security.protocol": "plaintext", "kafka.client.id": "x"}
    assert parse(options, streaming=True) == parse(ORDERS, streaming=True)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("kafka.ssl.truststore.location", "/x", "neither TLS nor SASL"),
        ("kafka.sasl.mechanism", "PLAIN", "neither TLS nor SASL"),
        ("kafka.security.protocol", "SASL_SSL", "neither TLS nor SASL"),
        ("kafka.auto.offset.reset", "earliest", "startingOffsets"),
        ("kafka.enable.auto.commit", "true", "checkpoint"),
        ("startingOffsets", "latest", "in a batch query: it would find nothing"),
        ("startingOffsets", '{"orders": {"0": -1}}', "in a batch query: it would find nothing"),
        ("startingOffsets", '{"orders": {"0": -3}}', "-3 for orders[0]"),
        ("startingOffsets", "somewhere", "is invalid, write it like"),
        ("endingOffsets", "earliest", "in a batch query: it would find nothing"),
        ("endingOffsets", '{"orders": {"0": -2}}', "in a batch query: it would find nothing"),
        ("endingOffsets", "group", "startingOffsets"),
        ("startingTimestamp", "yesterday", "2027-01-01"),
        ("maxOffsetsPerTrigger", "0", "a whole number above 0"),
        ("minPartitions", "-1", "a whole number above 0"),
        ("includeHeaders", "yes", "it can be true or false"),
        ("onDataLoss", "ignore", "it can be fail or skip or archive"),
        ("onDataLoss", "archive", "needs the option archive"),
        ("columns", "key,nothing", "there is no column 'nothing'"),
        ("columns", "key,KEY", "twice"),
        ("columns", "rawValue", "there is no column 'rawValue'"),
        ("valueFormat", "json", "valueSchema"),
        ("valueSchema", "id LONG", "valueFormat"),
        ("groupId", "", "group"),
        ("assign", '{"orders": [0]}', "subscribe and assign"),
        ("path", "/x", "subscribe"),
        ("kafka.isolation.level", "serializable", "read_committed or read_uncommitted"),
    ],
)
def test_invalid_options_are_rejected(name: str, value: str, why: str) -> None:
    assert why in refusal({**ORDERS, name: value})


def test_brokers_and_topics_must_be_named() -> None:
    assert "kafka.bootstrap.servers is missing" in refusal({"subscribe": "orders"})
    assert "found none" in refusal(BROKERS)
    assert "subscribe is empty" in refusal({**BROKERS, "subscribe": " , "})
    assert "RE2" in refusal({**BROKERS, "subscribePattern": "(?=x)"})


def test_a_stream_has_no_end() -> None:
    assert "endingTimestamp has no meaning" in refusal({**ORDERS, "endingTimestamp": "5"}, streaming=True)


def test_partitions_are_assigned_as_json() -> None:
    options = parse({**BROKERS, "assign": '{"orders": [1, 0], "bills": [2]}'}, streaming=False)
    targets = (TopicPartition("bills", 2), TopicPartition("orders", 0), TopicPartition("orders", 1))
    assert options.subscription == TopicSelection(partitions=targets)
    assert options.subscription.names == ("bills", "orders")


def test_a_time_has_precedence_over_offsets() -> None:
    options = {**ORDERS, "startingOffsets": "earliest", "startingTimestamp": "2027-01-01T00:00:00Z"}
    assert parse(options, streaming=True).starting == OffsetSpec("times", time_ms=1798761600000)
    by_partition = {**ORDERS, "startingOffsetsByTimestamp": '{"orders": {"0": 5}}', "startingOffsets": "earliest"}
    assert parse(by_partition, streaming=True).starting == OffsetSpec("times", {TopicPartition("orders", 0): 5})


def test_the_strategy_for_times_without_records_is_for_the_start() -> None:
    options = {**ORDERS, "startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}
    assert parse(options, streaming=True).starting.latest_if_none
    assert not parse({**ORDERS, "startingTimestamp": "5"}, streaming=True).starting.latest_if_none
    assert parse({**ORDERS, "endingTimestamp": "5"}, streaming=False).ending.latest_if_none


def test_both_data_loss_options_work() -> None:
    assert parse(ORDERS, streaming=True).on_data_loss == "fail"
    assert parse({**ORDERS, "failOnDataLoss": "false"}, streaming=True).on_data_loss == "skip"
    archive = {**ORDERS, "failOnDataLoss": "false", "onDataLoss": "archive", "archive": "/a"}
    assert parse(archive, streaming=True).on_data_loss == "archive"


def test_headers_are_omitted_by_default() -> None:
    assert "headers" not in parse(ORDERS, streaming=False).columns
    assert parse({**ORDERS, "includeHeaders": "true"}, streaming=False).columns[-1] == "headers"
    assert parse({**ORDERS, "columns": "Headers, offset"}, streaming=False).columns == ("headers", "offset")


def test_with_a_format_the_raw_bytes_are_available() -> None:
    options = {**ORDERS, "valueFormat": "json", "valueSchema": "id LONG"}
    columns, value_format, schema = parse_columns(options)
    assert (columns[-1], value_format, schema) == ("rawValue", "json", "id LONG")
    assert parse(options, streaming=False).columns == columns


def test_the_default_group_is_the_same_in_every_run() -> None:
    first, again = parse(ORDERS, streaming=True).group, parse({**ORDERS, "minPartitions": "4"}, streaming=True).group
    assert first == again
    assert first.startswith("spark-orders-")
    assert parse({**BROKERS, "subscribePattern": "orders"}, streaming=True).group != first
    assert parse({**ORDERS, "groupIdPrefix": "night"}, streaming=True).group.startswith("night-orders-")
    assert parse({**ORDERS, "kafka.group.id": "mine"}, streaming=True).group == "mine"
    assert parse({**ORDERS, "kafka.group.id": "mine", "groupId": "ours"}, streaming=True).group == "ours"


def test_options_can_be_pickled() -> None:
    options = parse({**ORDERS, "startingOffsets": '{"orders": {"0": -2}}'}, streaming=True)
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_wrong_option_is_a_configuration_error() -> None:
    with pytest.raises(InvalidConfig):
        parse({**ORDERS, "nonsense": "1"}, streaming=False)


def test_all_errors_are_reported_at_once() -> None:
    options = {"subscribe": "orders", "nonsense": "1", "onBadValue": "x", "maxTriggerDelay": "soon"}
    found = problems_of(options | {"valueFormat": "json", "valueSchema": "id NUMBR"}, streaming=True)
    assert [message.partition(" ")[0] for message in found] == [
        "there",
        "valueSchema",
        "the",
        "onBadValue",
        "maxTriggerDelay:",
    ]
    assert refusal(options, streaming=True).count("; ") >= 3
    sink = {"kafka.bootstrap.servers": "b:1", "topic": "a b", "delivery": "maybe", "transactionTimeout": "soon"}
    assert len(sink_options.problems_of(sink, streaming=True)) == 3


@pytest.mark.parametrize(
    ("value_format", "schema"), [("json", "id NUMBR"), ("avro", "nothing"), ("avro", '{"type": "record", "name": 3}')]
)
def test_an_invalid_schema_of_values_names_the_option(value_format: str, schema: str) -> None:
    options = {**ORDERS, "valueFormat": value_format, "valueSchema": schema}
    assert refusal(options).startswith("valueSchema ")
    with pytest.raises(InvalidConfig, match="valueSchema "):
        parse_columns(options)
