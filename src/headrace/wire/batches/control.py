"""Control batches: the markers that end a transaction in a partition, written by brokers only.

A marker is a batch of one record. Its key says what it is (0 abort, 1 commit), its value which reign of the coordinator
has written it; producer id and epoch stand in the batch's header. Readers skip markers, but they take up an offset.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from headrace.model.errors import HeadraceError
from headrace.wire.batches.batch import CONTROL, TRANSACTIONAL, BatchHeader, BatchRecord, build_batch, read_records

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1
_SIZE_BYTES_MAX: Final = 4096


class Marker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int) -> bytearray:
    kind = _COMMIT if marker.is_commit else _ABORT
    record = BatchRecord(
        key=_KEY.pack(_VERSION, kind),
        value=_VALUE.pack(_VERSION, marker.coordinator_epoch),
        timestamp_ms=timestamp_ms,
    )
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL | CONTROL
    )


def parse_marker(batch: memoryview, header: BatchHeader) -> Marker | None:
    """What a control batch says; None if it ends no transaction, as other kinds of control records do not."""
    try:
        record = next(read_records(batch, header, _SIZE_BYTES_MAX), None)
        if record is None or record.key is None or record.value is None:
            return None
        _, kind = _KEY.unpack_from(record.key)
        _, coordinator_epoch = _VALUE.unpack_from(record.value)
    except (HeadraceError, struct_error):
        return None
    return Marker(kind == _COMMIT, coordinator_epoch) if kind in (_ABORT, _COMMIT) else None
