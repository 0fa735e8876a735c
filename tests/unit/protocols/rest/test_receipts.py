"""Receipts and message ids are parsed correctly with and without the cache."""

from __future__ import annotations

import pytest

from headrace.client.queues.leased_messages import LeaseReceipt
from headrace.http.problems import Problem
from headrace.model.ids import MessageId
from headrace.protocols.rest.settle import ReceiptParser


def test_the_cache_does_not_change_how_receipts_are_parsed() -> None:
    receipts = ReceiptParser()
    for offset in (7, 8, 0, 10**18):
        for attempt, member in ((1, "a"), (2, "a"), (1, "b/c")):
            expected = LeaseReceipt(MessageId("jobs", 3, offset), attempt, 5, member)
            assert receipts.read(str(expected), "jobs", by_id=False) == expected


def test_a_message_id_stands_for_the_current_lease() -> None:
    receipts = ReceiptParser()
    for offset in (7, 8):
        found = receipts.read(f"jobs:0:{offset}", "jobs", by_id=True)
        assert found == LeaseReceipt(MessageId("jobs", 0, offset), -1, -1, "")


@pytest.mark.parametrize(
    ("text", "by_id", "code"),
    [
        ("jobs:0:7", False, "invalid_receipt"),
        ("jobs:0:7/", False, "invalid_receipt"),
        ("jobs:0:7/1/2/", False, "invalid_receipt"),
        ("jobs:0:x/1/5/a", False, "invalid_receipt"),
        ("jobs:0:-7/1/5/a", False, "invalid_receipt"),
        ("jobs:0:²/1/5/a", False, "invalid_receipt"),
        ("jobs:0:/1/5/a", False, "invalid_receipt"),
        ("jobs:0:99999999999999999999/1/5/a", False, "invalid_receipt"),
        ("", False, "invalid_receipt"),
        ("jobs:0:7/1/5/a", True, "invalid_message_id"),
        ("jobs:0:x", True, "invalid_message_id"),
        ("jobs:0:", True, "invalid_message_id"),
        ("jobs:0:7/", True, "invalid_message_id"),
        ("other:0:7", True, "other_topic"),
        ("other:0:7/1/5/a", False, "other_topic"),
    ],
)
def test_an_invalid_receipt_is_rejected_with_and_without_cache(text: str, by_id: bool, code: str) -> None:
    receipts = ReceiptParser()
    for _ in range(2):
        with pytest.raises(Problem) as raised:
            receipts.read(text, "jobs", by_id=by_id)
        assert (raised.value.status, raised.value.code) == (422, code)
        receipts.read("jobs:0:7/1/5/a", "jobs", by_id=False)
        receipts.read("jobs:0:7", "jobs", by_id=True)
        receipts.read("other:0:7/1/5/a", "other", by_id=False)
        receipts.read("other:0:7", "other", by_id=True)


def test_the_cache_is_bounded() -> None:
    receipts = ReceiptParser()
    for number in range(10_050):
        receipts.read(f"jobs:{number}:1", "jobs", by_id=True)
    assert len(receipts._parsed) <= 10_000
