"""Validate batches of producers before they are appended, with Kafka's rules and error codes.

The header and the checksum are checked in place. The records are decoded as well, because a wrong record count would be
acknowledged here and break all consumers later. For uncompressed batches the native library, if it is available, does
both in one pass; batches that it rejects are checked again in Python, which provides the error message. Batches for
which `needs_worker_thread` is true must be checked in disk threads, since a few kilobytes may decompress to many
megabytes.
"""

from __future__ import annotations

from headrace.model.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompressionType,
)
from headrace.model.topic_configs import TopicConfig
from headrace.native.soundness import is_surely_sound
from headrace.wire.batches.batch import HEADER_SIZE, BatchHeader, check_crc, parse_header, read_records, recompress
from headrace.wire.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from headrace.wire.batches.record_checks import check_records

_UNPACKED_BYTES_MIN = 16 << 20
_UNPACKED_RATIO = 16
_COMPRESSED_ON_LOOP_MAX = 4096
# The compression types of the topic config `compression.type`; "producer" keeps that of the batch.
_COMPRESSIONS = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_ZSTD_SINCE_PRODUCE = 7


def check_batch(
    batch: memoryview | None,
    produce_version: int,
    config: TopicConfig,
    now_ms: int,
    transactional_id: str | None = None,
) -> tuple[BatchHeader, bytes | None]:
    """Check everything except the records; return the header, and the bytes that the checksum covers, which contain the
    records, or None if the records were checked as well."""
    if batch is None or len(batch) == 0:
        raise InvalidRecord("a produce request must contain exactly one batch per partition, not none")
    if len(batch) < HEADER_SIZE:
        raise CorruptMessage(f"the batch has {len(batch)} bytes; the minimum is {HEADER_SIZE}")
    header = parse_header(batch)
    if header.magic != 2:
        raise InvalidRecord(f"record batches must have magic 2, not {header.magic}")
    if header.size_bytes < HEADER_SIZE or header.size_bytes > len(batch):
        raise CorruptMessage(f"the batch header says {header.size_bytes} bytes, but {len(batch)} were sent")
    if header.size_bytes != len(batch):
        raise InvalidRecord("a produce request must contain exactly one batch per partition, not more")
    if len(batch) > config.max_message_bytes:
        raise MessageTooLarge(
            f"the batch has {len(batch)} bytes; max.message.bytes of the topic is {config.max_message_bytes}"
        )
    crc_payload = None
    if header.compression != NONE or not is_surely_sound(batch, keys_required=config.compacts):
        crc_payload = check_crc(batch, header)
    _check_fields(header, produce_version, transactional_id)
    _check_timestamps(batch, header, config, now_ms)
    return header, crc_payload


def prepare_batch(
    batch: memoryview, header: BatchHeader, crc_payload: bytes | None, config: TopicConfig
) -> tuple[memoryview, BatchHeader]:
    """Check the records: their number, their bounds, and their keys if the topic is compacted. Return the batch to
    append: the batch itself, or the same records in the compression type of the topic."""
    unpacked_bytes_max = max(_UNPACKED_BYTES_MIN, _UNPACKED_RATIO * config.max_message_bytes)
    try:
        if crc_payload is not None:
            check_records(crc_payload, header, keys_required=config.compacts, size_bytes_max=unpacked_bytes_max)
    except InvalidRecord:
        if config.compacts:
            _reject_records_without_key(batch, header, unpacked_bytes_max)
        raise
    wanted = _COMPRESSIONS.get(config.compression_type)
    if wanted is None or wanted == header.compression:
        return batch, header
    again = memoryview(recompress(batch, header, wanted, unpacked_bytes_max))
    return again, parse_header(again)


def needs_worker_thread(header: BatchHeader, config: TopicConfig) -> bool:
    packs = header.compression != NONE or config.compression_type != "producer"
    return packs and header.size_bytes > _COMPRESSED_ON_LOOP_MAX


def _reject_records_without_key(batch: memoryview, header: BatchHeader, size_bytes_max: int) -> None:
    """Raise an error that lists the records without a key, if there are any."""
    why = "a compacted topic cannot accept a record without a key"
    records = read_records(batch, header, size_bytes_max)
    keyless = [(index, why) for index, record in enumerate(records) if record.key is None]
    if keyless:
        raise InvalidRecord(f"{len(keyless)} records were rejected: {why}", keyless)


def _check_fields(header: BatchHeader, produce_version: int, transactional_id: str | None) -> None:
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"the batch header says {header.record_count} records and last offset delta {header.last_offset_delta}; "
            "they do not match"
        )
    if header.is_control:
        raise InvalidRecord("clients cannot write control batches")
    if header.is_log_append_time:
        # Only brokers may set it: the dedup window uses such a timestamp as the arrival time.
        raise InvalidTimestamp("producers cannot set the timestamp type LogAppendTime; use CreateTime")
    if header.is_transactional:
        if transactional_id is None:
            raise TransactionalIdAuthorizationFailed(
                "a produce request with a transactional batch requires a transactional id"
            )
        if header.producer_id < 0:
            raise InvalidRecord("a transactional batch requires a producer id")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(f"invalid base sequence {header.base_sequence} of producer {header.producer_id}")
    if header.base_sequence < -1:
        raise InvalidRecord(f"base sequence {header.base_sequence} is reserved for internal records")
    if header.compression > ZSTD:
        raise InvalidRecord(f"unknown compression type {header.compression}")
    if header.compression == ZSTD and produce_version < _ZSTD_SINCE_PRODUCE:
        raise UnsupportedCompressionType(f"zstd requires Produce version {_ZSTD_SINCE_PRODUCE} or newer")


def _check_timestamps(batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    if config.message_timestamp_type != "CreateTime":
        return
    newest = now_ms + config.message_timestamp_after_max_ms
    oldest = now_ms - config.message_timestamp_before_max_ms
    if header.max_timestamp <= newest and (header.base_timestamp < 0 or header.base_timestamp >= oldest):
        return
    why = (
        f"a timestamp must be at most message.timestamp.before.max.ms={config.message_timestamp_before_max_ms} before "
        f"and message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} after the broker's time {now_ms}"
    )
    bad = []
    if header.compression == NONE:
        # List the records only if that requires no decompression.
        records = read_records(batch, header, len(batch))
        bad = [(index, why) for index, one in enumerate(records) if not oldest <= one.timestamp_ms <= newest]
    raise InvalidTimestamp(why, bad)
