"""Reading receipts and ids as clients send them, many at a time and each for itself.

What the receipts of one pull have in common (topic, partition, attempt, epoch, member) is read once and remembered, so
that most cost no more than their offsets.
"""

from __future__ import annotations

from headrace.client.leased import Receipt, receipt_from_text
from headrace.http.problem import Problem
from headrace.model.errors import InvalidRequest
from headrace.model.message_ids import MessageId, message_id_from_text

_KEPT_MAX = 10_000
_DIGITS_MAX = 18  # of an offset that is surely small enough
_ANY = -1
_ANYBODY = ""


class Receipts:
    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Receipt] = {}

    def read(self, text: str, topic: str, *, by_id: bool) -> Receipt:
        """Of a message of this topic. By id: that of the lease which it has, whoever holds it. Raises `Problem` 422."""
        found, rest = (text, "") if by_id else _parts(text)
        place, _, digits = found.rpartition(":")
        kept = self._kept.get((place, rest)) if by_id or rest else None
        if kept is not None and len(digits) <= _DIGITS_MAX and digits.isdigit() and digits.isascii():
            (found_topic, partition, _), attempt, epoch, member = kept
            receipt = Receipt(MessageId(found_topic, partition, int(digits)), attempt, epoch, member)
        else:
            receipt = _parse(text, by_id=by_id)
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[place, rest] = receipt
        if receipt.id.topic != topic:
            raise Problem(
                422,
                "other_topic",
                f"message {receipt.id} is not of topic {topic!r}, whose subscription this is",
                "settle it with the subscription that it was pulled from",
            )
        return receipt


def _parts(text: str) -> tuple[str, str]:
    """The id, and what is behind it."""
    found, _, rest = text.partition("/")
    return found, rest


def _parse(text: str, *, by_id: bool) -> Receipt:
    try:
        return Receipt(message_id_from_text(text), _ANY, _ANY, _ANYBODY) if by_id else receipt_from_text(text)
    except InvalidRequest as error:
        code = "invalid_message_id" if by_id else "invalid_receipt"
        raise Problem(422, code, error.message[:400], "send it as the pull has given it") from None
