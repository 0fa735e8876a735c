"""Request and response headers, with and without tagged fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import MalformedFrame
from headrace.wire.apis import API_VERSIONS, APIS, FETCH, METADATA, PRODUCE
from headrace.wire.codec.header import (
    RequestHeader,
    encode_request_header,
    encode_response_header,
    parse_request_header,
    parse_response_header,
)


@pytest.mark.parametrize(("version", "tags"), [(7, b""), (9, b"\0"), (9, b"\1\x63\2hi")])
@pytest.mark.parametrize("client_id", ["rdkafka", "", None, "é"])
def test_a_request_header_ends_at_the_body(version: int, tags: bytes, client_id: str | None) -> None:
    plain = encode_request_header(APIS[PRODUCE], version, 77, client_id)
    data = (plain[:-1] + tags if version >= 9 else plain) + b"body"
    header, position = parse_request_header(memoryview(data))
    assert header == RequestHeader(api_key=PRODUCE, api_version=version, correlation_id=77, client_id=client_id)
    assert data[position:] == b"body"


def test_the_bytes_of_a_request_header() -> None:
    header = encode_request_header(APIS[METADATA], 9, 1, "ab")
    assert header.hex(" ") == "00 03 00 09 00 00 00 01 00 02 61 62 00"


def test_the_header_of_an_unknown_api_versions_version_is_parsed() -> None:
    data = bytes.fromhex("0012 0063 00000005 0001 78") + b"\xff" * 30
    header, _ = parse_request_header(memoryview(data))
    assert header == RequestHeader(API_VERSIONS, 99, 5, "x")


def test_the_header_of_an_unknown_api_is_parsed() -> None:
    header, position = parse_request_header(memoryview(bytes.fromhex("03e8 0000 00000005 ffff")))
    assert header == RequestHeader(1000, 0, 5, None)
    assert position == 10


@pytest.mark.parametrize(
    "data",
    [
        "",
        "0000",
        "0000 0009 00000001",
        "0000 0009 00000001 0005 6162",
        "0000 0009 00000001 fffe",
        "0000 0009 00000001 0001 ff",
        "0000 0009 00000001 ffff",
        "0000 0009 00000001 ffff 01 05 7f",
    ],
)
def test_a_malformed_request_header_is_a_typed_error(data: str) -> None:
    with pytest.raises(MalformedFrame):
        parse_request_header(memoryview(bytes.fromhex(data)))


@given(st.binary(max_size=40))
def test_any_bytes_parse_or_raise_a_typed_error(data: bytes) -> None:
    try:
        _, position = parse_request_header(memoryview(data))
    except MalformedFrame:
        return
    assert 10 <= position <= len(data)


@pytest.mark.parametrize("tagged", [False, True])
def test_a_response_header_survives_a_round_trip(tagged: bool) -> None:
    data = encode_response_header(-5, tagged)
    assert parse_response_header(memoryview(data + b"body"), tagged) == (-5, len(data))
    with pytest.raises(MalformedFrame):
        parse_response_header(memoryview(data)[:-1], tagged)


def test_header_versions_follow_flexibility_except_for_api_versions() -> None:
    fetch, api_versions = APIS[FETCH], APIS[API_VERSIONS]
    assert [fetch.request_header_version(v) for v in (11, 12)] == [1, 2]
    assert [fetch.response_header_version(v) for v in (11, 12)] == [0, 1]
    assert [api_versions.request_header_version(v) for v in (2, 3)] == [1, 2]
    assert [api_versions.response_header_version(v) for v in (2, 3, 4)] == [0, 0, 0]


def test_produce_is_advertised_from_v0_but_known_from_v3() -> None:
    produce = APIS[PRODUCE]
    assert (produce.advertised_min, produce.min_version, produce.max_version) == (0, 3, 13)
    assert not produce.knows(2)
    assert all(api.advertised_min == api.min_version for api in APIS.values() if api is not produce)
