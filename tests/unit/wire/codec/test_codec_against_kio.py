"""Every message in every supported version is encoded and decoded like kio does."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.wire.codec.oracle import (
    CASES,
    assert_same,
    kio_bytes,
    kio_class,
    kio_message,
    name_of,
    random_message,
    versions,
)

from headrace.model.errors import MalformedFrame
from headrace.wire.apis import Api
from headrace.wire.codec.codec import decode, encode


def join(chunks: list[object]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)  # type: ignore[call-overload]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_values_and_bytes_agree_with_kio(case: tuple[Api, str]) -> None:
    api, kind = case
    random = Random(name_of(case))
    for version in versions(api):
        cls = kio_class(api, kind, version)
        for _ in range(12):
            theirs = random_message(cls, random)
            data = kio_bytes(theirs)
            ours = decode(getattr(api, kind), version, memoryview(data))
            assert_same(ours, theirs)
            again = join([*encode(ours, version)])
            assert again == data
            assert kio_message(cls, again) == theirs


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_headers_and_flexibility_agree_with_kio(case: tuple[Api, str]) -> None:
    api, kind = case
    for version in versions(api):
        cls = kio_class(api, kind, version)
        assert cls.__api_key__ == api.key
        assert cls.__flexible__ == (version >= api.flexible_since)
        header_version = api.request_header_version if kind == "request" else api.response_header_version
        assert cls.__header_schema__.__version__ == header_version(version)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_truncation_is_a_typed_error(case: tuple[Api, str]) -> None:
    api, kind = case
    random = Random(name_of(case))
    for version in versions(api):
        data = memoryview(kio_bytes(random_message(kio_class(api, kind, version), random, sizes=(1, 2))))
        for length in range(len(data)):
            with pytest.raises(MalformedFrame):
                decode(getattr(api, kind), version, data[:length])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_message_of_defaults_can_be_sent_in_every_version(case: tuple[Api, str]) -> None:
    api, kind = case
    cls = getattr(api, kind)
    for version in versions(api):
        assert decode(cls, version, memoryview(join([*encode(cls(), version)]))) == cls()
