"""The codec: any input is decoded or raises a typed error, with bounded memory."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import MalformedFrame
from headrace.wire.apis import APIS
from headrace.wire.codec.codec import decode, encode, encode_bytes
from headrace.wire.codec.schema import Chunk
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from headrace.wire.messages.groups import DescribeGroupsRequest
from headrace.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataResponse,
)
from headrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

UNKNOWN_TAG = b"\x01\x63\x02hi"  # one tagged field: tag 99, two bytes


def view(*parts: bytes) -> memoryview:
    return memoryview(b"".join(parts))


class FileSlice:
    """Stands for a slice that sendfile sends."""

    def __len__(self) -> int:
        return 1000


def test_the_bytes_of_a_produce_request() -> None:
    data = bytes.fromhex(
        "00"  # transactional id: null
        "ffff 00007530"  # acks all, 30 s
        "02 07 6f7264657273"  # one topic: orders
        "02 00000003 05 deadbeef 00"  # one partition, number 3, four bytes of records
        "00 00"
    )
    assert decode(ProduceRequest, 9, view(data)) == ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name="orders",
                partition_data=[PartitionProduceData(index=3, records=memoryview(b"\xde\xad\xbe\xef"))],
            )
        ],
    )


def test_the_bytes_of_a_produce_response() -> None:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="orders",
                partition_responses=[PartitionProduceResponse(index=3, base_offset=42, log_start_offset=7)],
            )
        ]
    )
    v3 = "00000001 0006 6f7264657273 00000001 00000003 0000 000000000000002a ffffffffffffffff 00000000"
    assert encode(response, 3) == [bytes.fromhex(v3)]
    v9 = "02 07 6f726465727302 00000003 0000 000000000000002a ffffffffffffffff 0000000000000007 01 00 0000 00000000 00"
    assert encode(response, 9) == [bytes.fromhex(v9)]


def test_features_are_tagged_fields() -> None:
    response = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
        finalized_features_epoch=1,
        finalized_features=[FinalizedFeatureKey(name="group.version", max_version_level=1, min_version_level=1)],
    )
    assert encode_bytes(response, 0).hex(" ") == "00 00 00 00 00 01 00 12 00 00 00 04"
    v3 = (
        "0000 02 0012 0000 0004 00 0000000002 01 08 000000000000000102 14 02 0e 67726f75702e76657273696f6e 0001 0001 00"
    )
    assert encode_bytes(response, 3) == bytes.fromhex(v3)


def test_records_are_not_copied() -> None:
    buffer = bytearray(b"".join([b"\0\xff\xff\0\0\0\1\2\2t\2\0\0\0\0\5", b"abcd", b"\0\0\0"]))
    request = decode(ProduceRequest, 9, memoryview(buffer))
    records = request.topic_data[0].partition_data[0].records
    assert records is not None
    buffer[16:18] = b"AB"
    assert bytes(records) == b"ABcd"

    slices: list[Chunk] = [FileSlice(), memoryview(b"view")]
    partitions = [PartitionData(partition_index=i, records=piece) for i, piece in enumerate(slices)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    chunks = encode(response, 12)
    assert [type(chunk) for chunk in chunks] == [bytes, FileSlice, bytes, memoryview, bytes]
    assert chunks[1] is slices[0]
    assert chunks[3] is slices[1]


def test_null_and_empty_records_are_distinct() -> None:
    for records, length in ((None, 0), (b"", 1)):
        partition = PartitionData(partition_index=1, records=records)
        response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
        (chunk,) = encode(response, 12)
        assert isinstance(chunk, bytes)
        assert chunk[-4:] == bytes([length, 0, 0, 0])


def test_unknown_tags_are_skipped_in_every_struct() -> None:
    plain = view(b"\0\xff\xff\0\0\0\1\2\2t\2\0\0\0\0\5abcd\0", b"\0", b"\0")
    tagged = view(
        b"\0\xff\xff\0\0\0\1\2\2t\2\0\0\0\0\5abcd",
        UNKNOWN_TAG,
        UNKNOWN_TAG,
        b"\x02\x63\x02hi\xff\x7f\x00",
    )
    assert decode(ProduceRequest, 9, tagged) == decode(ProduceRequest, 9, plain)


def test_unknown_tags_are_skipped_next_to_known_ones() -> None:
    request = FetchRequest(cluster_id="c", replica_state=ReplicaState(replica_id=4, replica_epoch=9))
    data = encode_bytes(request, 15)
    tags_at = len(data) - len(b"\x02\x00\x02\x02c\x01\x0d") - 13
    assert data[tags_at] == 2
    with_unknown = data[:tags_at] + b"\x04\x63\x02hi" + data[tags_at + 1 :] + b"\x64\x00"
    assert decode(FetchRequest, 15, memoryview(with_unknown)) == request


def test_a_tagged_field_with_a_wrong_size_is_malformed() -> None:
    data = encode_bytes(FetchRequest(replica_state=ReplicaState(replica_id=4)), 15)
    with pytest.raises(MalformedFrame, match="another size"):
        decode(FetchRequest, 15, memoryview(data[:-14] + b"\x0e" + data[-13:] + b"\0"))


def test_bytes_after_a_message_are_ignored() -> None:
    data = encode_bytes(MetadataRequest(topics=None), 12)
    assert decode(MetadataRequest, 12, view(data, b"???")).topics is None


def test_a_message_is_decoded_from_a_position() -> None:
    data = encode_bytes(DescribeGroupsRequest(groups=["g"]), 5)
    assert decode(DescribeGroupsRequest, 5, view(b"header", data), 6).groups == ["g"]


MALFORMED: dict[str, tuple[type, int, bytes]] = {
    "string longer than the message": (ProduceRequest, 9, b"\x7fabc"),
    "string of two gigabytes": (ProduceRequest, 9, b"\xff\xff\xff\xff\x07abc"),
    "legacy string of negative length": (ProduceRequest, 3, b"\xff\xfe"),
    "legacy string longer than the message": (ProduceRequest, 3, b"\x7f\xffabc"),
    "varint without an end": (ProduceRequest, 9, b"\xff" * 20),
    "null where a list must be": (ProduceRequest, 9, b"\0\0\0\0\0\0\0\0\0"),
    "null where a name must be": (ProduceRequest, 9, b"\0\0\0\0\0\0\0\2\0\1\0\0"),
    "list of two billion": (ProduceRequest, 3, b"\xff\xff\0\0\0\0\0\0\x7f\xff\xff\xff"),
    "list of negative length": (ProduceRequest, 3, b"\xff\xff\0\0\0\0\0\0\xff\xff\xff\xfe"),
    "list longer than the bytes can hold": (DescribeGroupsRequest, 5, b"\x05" + b"\1" * 3),
    "records longer than the message": (
        ProduceRequest,
        3,
        b"\xff\xff\0\0\0\0\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x40\0\0\0abc",
    ),
    "name that is not utf-8": (ProduceRequest, 9, b"\0\0\0\0\0\0\0\2\2\xff\1\0\0"),
    "tag longer than the message": (ProduceRequest, 9, b"\0\0\0\0\0\0\0\1\1\0\x7f"),
    "known tag longer than the message": (
        FetchRequest,
        12,
        encode_bytes(FetchRequest(), 12)[:-1] + b"\1\0\x7f",
    ),
    "ten thousand and one tags": (ProduceRequest, 9, b"\0\0\0\0\0\0\0\1\x91\x4e" + b"\1\0" * 10_001),
    "ten thousand and one known tags": (
        FetchRequest,
        12,
        encode_bytes(FetchRequest(), 12)[:-1] + b"\x91\x4e" + b"\1\0" * 10_001,
    ),
    "nothing at all": (ProduceRequest, 9, b""),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_messages_are_rejected(name: str) -> None:
    cls, version, data = MALFORMED[name]
    with pytest.raises(MalformedFrame):
        decode(cls, version, memoryview(data))


def test_arrays_of_more_than_a_million_elements_are_rejected() -> None:
    count = 1_000_001
    data = count.to_bytes(4, "big") + bytes(2 * count)
    with pytest.raises(MalformedFrame):
        decode(DescribeGroupsRequest, 0, memoryview(data))
    million = (1_000_000).to_bytes(4, "big") + bytes(2_000_000)
    assert len(decode(DescribeGroupsRequest, 0, memoryview(million)).groups) == 1_000_000


def test_a_declared_length_allocates_no_memory() -> None:
    lies = [data for name, (_, _, data) in MALFORMED.items() if "billion" in name or "gigabytes" in name]
    tracemalloc.start()
    for version, data in zip((9, 3), lies, strict=True):
        with pytest.raises(MalformedFrame):
            decode(ProduceRequest, version, memoryview(data))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200_000


@given(data=st.binary(max_size=200), pick=st.integers(0, 10_000))
def test_garbage_decodes_or_raises_a_typed_error(data: bytes, pick: int) -> None:
    api = list(APIS.values())[pick % len(APIS)]
    version = api.min_version + pick % (api.max_version - api.min_version + 1)
    for cls in (api.request, api.response):
        try:
            message = decode(cls, version, memoryview(data))
        except MalformedFrame:
            continue
        # A decoded message survives a round trip.
        again = b"".join(bytes(chunk) for chunk in encode(message, version))  # type: ignore[call-overload]
        assert decode(cls, version, memoryview(again)) == message


def test_fields_of_other_versions_have_their_defaults() -> None:
    topic_id = UUID(int=5)
    response = MetadataResponse(cluster_id="c", controller_id=3, throttle_time_ms=9)
    assert decode(MetadataResponse, 0, memoryview(encode_bytes(response, 0))) == MetadataResponse()
    topic = TopicProduceResponse(name="t", topic_id=topic_id)
    old = decode(ProduceResponse, 12, memoryview(encode_bytes(ProduceResponse(responses=[topic]), 12)))
    new = decode(ProduceResponse, 13, memoryview(encode_bytes(ProduceResponse(responses=[topic]), 13)))
    assert old.responses[0] == TopicProduceResponse(name="t")
    assert new.responses[0] == TopicProduceResponse(topic_id=topic_id)


def test_messages_do_not_share_default_lists() -> None:
    one, other = ProduceResponse(), ProduceResponse()
    one.responses.append(TopicProduceResponse())
    assert other.responses == []


def test_undeclared_versions_cannot_be_compiled() -> None:
    with pytest.raises(AssertionError):
        encode(ProduceRequest(), 2)
    with pytest.raises(AssertionError):
        decode(ProduceRequest, 14, memoryview(b""))
