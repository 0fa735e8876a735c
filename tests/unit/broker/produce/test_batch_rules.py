"""Each rule for produced batches in Kafka's table, with the error that it gives."""

from __future__ import annotations

import struct

import pytest

from headrace.broker.produce import batch_rules
from headrace.broker.produce.batch_rules import check_batch, needs_worker_thread, prepare_batch
from headrace.model.errors import (
    CorruptMessage,
    HeadraceError,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from headrace.model.topic_configs import TopicConfig
from headrace.native.soundness import is_surely_sound
from headrace.wire.batches.batch import (
    CONTROL,
    CRC_START,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchRecord,
    build_batch,
    parse_header,
    read_records,
    set_crc,
)
from headrace.wire.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DEFAULTS = TopicConfig()


@pytest.fixture(autouse=True, params=["native", "pure"])
def is_native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every rule holds by the compiled library, where there is one, and without it."""
    if request.param == "native":
        return is_surely_sound(memoryview(make()), keys_required=False)
    monkeypatch.setattr(batch_rules, "is_surely_sound", lambda *_, **__: False)
    return False


def make(count: int = 3, key: bytes | None = None, timestamp_ms: int = NOW_MS, **options: int) -> bytearray:
    records = [BatchRecord(key=key, value=b"value %d" % at, timestamp_ms=timestamp_ms) for at in range(count)]
    return build_batch(records, **options)


def patched(position: int, layout: str, value: int, *, crc: bool = True) -> bytearray:
    """A batch with one field of its header overwritten, and the checksum made right again."""
    batch = make()
    struct.pack_into(layout, batch, position, value)
    if crc:
        set_crc(memoryview(batch))
    return batch


def configured(**configs: str) -> TopicConfig:
    return TopicConfig.build({name.replace("_", "."): value for name, value in configs.items()}, DEFAULTS)


def validation_error(
    batch: bytes | bytearray | None, config: TopicConfig = DEFAULTS, version: int = 9
) -> HeadraceError | None:
    """The error that rejects a batch before it is appended, if any."""
    view = None if batch is None else memoryview(batch)
    try:
        header, sealed = check_batch(view, version, config, NOW_MS)
        assert view is not None
        prepare_batch(view, header, sealed, config)
    except HeadraceError as error:
        return error
    return None


@pytest.mark.parametrize("compression", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_sound_batch_passes(compression: int) -> None:
    assert validation_error(make(compression=compression)) is None
    assert validation_error(make(count=1, compression=compression)) is None
    assert validation_error(make(producer_id=7, producer_epoch=0, base_sequence=0)) is None


def test_a_batch_that_the_library_accepted_is_not_checked_again(is_native: bool) -> None:
    batch = memoryview(make())
    _, sealed = check_batch(batch, 9, DEFAULTS, NOW_MS)
    assert sealed == (None if is_native else bytes(batch[CRC_START:]))
    _, sealed = check_batch(memoryview(make(compression=LZ4)), 9, DEFAULTS, NOW_MS)
    assert sealed is not None


def test_timestamps_are_checked_even_if_the_native_library_accepted_the_records() -> None:
    late = make(timestamp_ms=NOW_MS + 2 * HOUR_MS)
    error = validation_error(late)
    assert isinstance(error, InvalidTimestamp)
    assert [index for index, _ in error.records] == [0, 1, 2]


def test_any_leader_epoch_is_accepted() -> None:
    assert validation_error(patched(12, ">i", 5)) is None


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        pytest.param(None, InvalidRecord, id="no records"),
        pytest.param(b"", InvalidRecord, id="empty records"),
        pytest.param(make() + make(), InvalidRecord, id="two batches"),
        pytest.param(patched(16, ">b", 1), InvalidRecord, id="magic 1"),
        pytest.param(patched(16, ">b", 3), InvalidRecord, id="magic 3"),
        pytest.param(patched(0, ">q", 5), InvalidRecord, id="base offset not 0"),
        pytest.param(make()[:60], CorruptMessage, id="shorter than a header"),
        pytest.param(make()[:-1], CorruptMessage, id="cut at its end"),
        pytest.param(patched(8, ">i", 10), CorruptMessage, id="length below a header"),
        pytest.param(patched(8, ">i", -1), CorruptMessage, id="negative length"),
        pytest.param(patched(8, ">i", 2**31 - 1), CorruptMessage, id="length far behind the end"),
        pytest.param(patched(17, ">I", 12345, crc=False), CorruptMessage, id="wrong crc"),
        pytest.param(patched(57, ">i", 0), InvalidRecord, id="no records in it"),
        pytest.param(patched(57, ">i", -1), InvalidRecord, id="negative count"),
        pytest.param(patched(57, ">i", 4), InvalidRecord, id="count is not last delta + 1"),
        pytest.param(patched(23, ">i", 3), InvalidRecord, id="last delta is not count - 1"),
        pytest.param(make(attributes=CONTROL), InvalidRecord, id="control batch"),
        pytest.param(make(attributes=LOG_APPEND_TIME), InvalidTimestamp, id="log append time by the producer"),
        pytest.param(make(base_sequence=-2), InvalidRecord, id="event of the broker's own"),
        pytest.param(make(attributes=TRANSACTIONAL), TransactionalIdAuthorizationFailed, id="transactional batch"),
        pytest.param(make(producer_id=7, producer_epoch=0), InvalidRecord, id="producer without sequence"),
        pytest.param(patched(21, ">h", 5), InvalidRecord, id="unknown compression"),
        pytest.param(patched(21, ">h", 7), InvalidRecord, id="unknown compression 7"),
    ],
)
def test_a_batch_that_breaks_a_rule_is_rejected(batch: bytes | None, error: type[HeadraceError]) -> None:
    assert type(validation_error(batch)) is error


def test_a_wrong_record_count_is_found_by_iterating() -> None:
    batch = make(count=3)
    struct.pack_into(">i", batch, 57, 4)
    struct.pack_into(">i", batch, 23, 3)
    set_crc(memoryview(batch))
    assert isinstance(validation_error(batch), InvalidRecord)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_that_cannot_be_decompressed_is_rejected(compression: int) -> None:
    batch = make(compression=compression)
    batch[61:] = b"\x05" * (len(batch) - 61)
    set_crc(memoryview(batch))
    assert isinstance(validation_error(batch), InvalidRecord | CorruptMessage)


def test_a_decompression_bomb_is_rejected() -> None:
    bomb = build_batch([BatchRecord(value=bytes(40 << 20), timestamp_ms=NOW_MS)], compression=GZIP)
    assert len(bomb) < 100_000
    assert validation_error(bomb) is not None


def test_a_batch_above_max_message_bytes_is_rejected() -> None:
    batch = make()
    assert validation_error(batch, configured(max_message_bytes=str(len(batch)))) is None
    assert isinstance(validation_error(batch, configured(max_message_bytes=str(len(batch) - 1))), MessageTooLarge)


def test_zstd_needs_produce_version_7() -> None:
    batch = make(compression=ZSTD)
    assert isinstance(validation_error(batch, version=6), UnsupportedCompressionType)
    assert validation_error(batch, version=7) is None


def test_a_compacted_topic_needs_keys() -> None:
    compacted = configured(cleanup_policy="compact")
    assert isinstance(validation_error(make(), compacted), InvalidRecord)
    assert validation_error(make(key=b"k"), compacted) is None
    assert isinstance(validation_error(make(compression=LZ4), compacted), InvalidRecord)


def test_a_timestamp_too_far_ahead_is_rejected() -> None:
    assert validation_error(make(timestamp_ms=NOW_MS + HOUR_MS)) is None
    assert isinstance(validation_error(make(timestamp_ms=NOW_MS + HOUR_MS + 1)), InvalidTimestamp)


def test_a_timestamp_too_far_behind_is_rejected_if_configured() -> None:
    strict = configured(message_timestamp_before_max_ms="1000")
    assert validation_error(make(timestamp_ms=NOW_MS - HOUR_MS)) is None
    assert validation_error(make(timestamp_ms=NOW_MS - 1000), strict) is None
    assert isinstance(validation_error(make(timestamp_ms=NOW_MS - 1001), strict), InvalidTimestamp)


def test_timestamps_do_not_matter_where_the_broker_sets_them() -> None:
    assert (
        validation_error(make(timestamp_ms=NOW_MS + 2 * HOUR_MS), configured(message_timestamp_type="LogAppendTime"))
        is None
    )


@pytest.mark.parametrize(("name", "wanted"), [("gzip", GZIP), ("lz4", LZ4), ("zstd", ZSTD), ("uncompressed", NONE)])
def test_a_batch_is_recompressed_if_the_topic_sets_a_compression(name: str, wanted: int) -> None:
    config = configured(compression_type=name)
    for given in (NONE, GZIP, SNAPPY, ZSTD):
        batch = memoryview(make(compression=given, producer_id=7, producer_epoch=1, base_sequence=9))
        packed, again = prepare_batch(batch, *check_batch(batch, 9, config, NOW_MS), config)
        assert again.compression == wanted
        assert again == parse_header(packed)
        assert (again.producer_id, again.base_sequence, again.record_count) == (7, 9, 3)
        assert [record.value for record in read_records(packed, again, 1 << 20)] == [b"value 0", b"value 1", b"value 2"]
        assert not packed.readonly, "the log stamps it"
        if given == wanted:
            assert packed is batch


def test_large_packed_batches_are_not_for_the_loop() -> None:
    small, large = parse_header(make(compression=GZIP)), parse_header(make(count=2000, compression=ZSTD))
    plain = parse_header(make(count=2000))
    assert not needs_worker_thread(small, DEFAULTS)
    assert needs_worker_thread(large, DEFAULTS)
    assert not needs_worker_thread(plain, DEFAULTS)
    assert needs_worker_thread(plain, configured(compression_type="gzip"))
