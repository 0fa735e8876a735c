"""The frames of a WebSocket stream other than messages: settle requests of the receiver, and error responses.

    {"ack": RECEIPT}  {"nack": RECEIPT, "delay": "5s", "reason": "busy"}  {"reject": RECEIPT, "reason": "broken"}
    {"extend": RECEIPT, "lease": "1m"}                                    a list of receipts is allowed as well
    {"refused": [{"receipt": RECEIPT, "code": "lease_lost", "message": ...}]}
    {"error": {"code": ..., "message": ..., "next": ...}}                 for an invalid frame

There is no response for messages that were settled successfully.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from headrace.client.leased import Receipt, receipt_from_text
from headrace.client.settling import ACK, EXTEND, NACK, REJECT, Refused
from headrace.doors.rest.bodies import Duration, duration_ms
from headrace.doors.rest.problems import problem_of
from headrace.http.problem import Problem, ProblemBody
from headrace.model.errors import HeadraceError, InvalidRequest
from headrace.wire.messages.settle import SettleItem

_UNSET = -1
_NEXT = 'send {"ack": RECEIPT}, {"nack": RECEIPT}, {"extend": RECEIPT} or {"reject": RECEIPT}'
_RECEIPTS_MAX = 10_000

Receipts = str | list[str]


class SettleFrame(msgspec.Struct, forbid_unknown_fields=True):
    ack: Receipts | UnsetType = UNSET
    nack: Receipts | UnsetType = UNSET
    reject: Receipts | UnsetType = UNSET
    extend: Receipts | UnsetType = UNSET
    delay: Duration | None = None
    lease: Duration | None = None
    reason: str | None = None


class RefusedReceipt(msgspec.Struct):
    receipt: str
    code: str
    message: str


class Settling(NamedTuple):
    """A parsed settle frame; invalid receipts are already separated."""

    receipts: Sequence[Receipt]
    how: SettleItem
    refused: Sequence[RefusedReceipt]


_DECODER = msgspec.json.Decoder(SettleFrame)


def read_frame(text: str | bytes, topics: Collection[str]) -> Settling:
    """Parse a frame, or raise `Problem`. A stream cannot settle messages of other topics."""
    try:
        frame = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_frame(f"the frame is invalid: {error}") from None
    verbs = {ACK: frame.ack, NACK: frame.nack, REJECT: frame.reject, EXTEND: frame.extend}
    given = [(how, receipts) for how, receipts in verbs.items() if receipts is not UNSET]
    if len(given) != 1:
        raise _bad_frame(f"a frame must contain exactly one operation, not {len(given)}")
    how, texts = given[0]
    assert not isinstance(texts, UnsetType)
    texts = [texts] if isinstance(texts, str) else texts
    if len(texts) > _RECEIPTS_MAX:
        raise _bad_frame(f"a frame may contain up to {_RECEIPTS_MAX} receipts, not {len(texts)}")
    item = SettleItem(
        how=how,
        delay_ms=_UNSET if frame.delay is None else duration_ms(frame.delay, "delay"),
        lease_ms=_UNSET if frame.lease is None else duration_ms(frame.lease, "lease"),
        reason=frame.reason,
    )
    receipts: list[Receipt] = []
    refused: list[RefusedReceipt] = []
    for one in texts:
        try:
            receipts.append(_receipt(one, topics))
        except HeadraceError as error:
            refused.append(_refused(one, error))
    return Settling(receipts, item, refused)


def refused_frame(refused: Sequence[RefusedReceipt | Refused]) -> str:
    told = [_refused(str(one.receipt), one.error) if isinstance(one, Refused) else one for one in refused]
    return msgspec.json.encode({"refused": told}).decode()


def error_frame(problem: Problem) -> str:
    body = ProblemBody(problem.code, problem.message, problem.next_step)
    return msgspec.json.encode({"error": body}).decode()


def _receipt(text: str, topics: Collection[str]) -> Receipt:
    receipt = receipt_from_text(text)
    if receipt.id.topic not in topics:
        raise InvalidRequest(f"the receipt belongs to topic {receipt.id.topic}, which is not in this stream")
    return receipt


def _refused(receipt: str, error: HeadraceError) -> RefusedReceipt:
    return RefusedReceipt(receipt, problem_of(error).code, error.message)


def _bad_frame(message: str) -> Problem:
    return Problem(422, "invalid_frame", message, _NEXT)
