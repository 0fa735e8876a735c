"""Well-formed seed inputs for each target, built by kio and by hand instead of by the code under test."""

from __future__ import annotations

import gzip

import cramjam
import zstandard
from tests.fuzz.http_reader import CORPUS
from tests.fuzz.targets import REQUESTS
from tests.integration.batches import batch, good_batch, malformed_batches, records
from tests.integration.raw import encode_request, request_versions

from headrace.wire.apis import APIS, OWN_KEYS

VALUES = [b"value %d" % number for number in range(20)]


def seeds(target: str) -> list[bytes]:
    if target == "frame":
        return frames()
    if target in {"request", "response"}:
        return [index.to_bytes(2, "big") + bytes(60) for index in range(len(REQUESTS))]
    if target in {"batch", "sealed_batch"}:
        return batches()
    if target == "soundness":
        return [keys + one for keys in (b"k", b"-") for one in batches()]
    if target == "http":
        return [bytes([cut]) + one for cut in (0, 10, 255) for one in CORPUS]
    if target == "compression":
        return compressed()
    return segments()


def frames() -> list[bytes]:
    return [
        encode_request(api.key, version)
        for api in APIS.values()
        if api.key < OWN_KEYS  # unknown to kio
        for version in request_versions(api.key)
        if api.knows(version)
    ]


def batches() -> list[bytes]:
    return [good_batch(VALUES), *(batch(data[1:], len(VALUES), attributes=data[0]) for data in compressed())] + [
        one for one in malformed_batches().values() if len(one) < 10_000
    ]


def compressed() -> list[bytes]:
    plain = records(VALUES)
    return [
        b"\0" + plain,
        b"\x01" + gzip.compress(plain),
        b"\x02" + bytes(cramjam.snappy.compress_raw(plain)),
        b"\x03" + bytes(cramjam.lz4.compress(plain)),
        b"\x04" + zstandard.compress(plain),
        b"\x01" + gzip.compress(bytes(8 * 2**20)),
        b"\x02" + bytes(cramjam.snappy.compress_raw(bytes(8 * 2**20))),
        b"\x03" + bytes(cramjam.lz4.compress(bytes(8 * 2**20))),
        b"\x04" + zstandard.compress(bytes(8 * 2**20)),
    ]


def segments() -> list[bytes]:
    """Return a segment file of three batches with assigned offsets."""
    return [b"".join(batch(records(VALUES), len(VALUES), base_offset=20 * number) for number in range(3)), b""]
