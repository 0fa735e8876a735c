"""Parse receipts and message ids, of which a request may contain many; an invalid one does not affect the others.

The common parts of the receipts of a pull (topic, partition, attempt, epoch, member) are parsed once and cached, so
that for most receipts only the offset is parsed.
"""

from __future__ import annotations

from headrace.client.queues.leased_messages import LeaseReceipt, receipt_from_text
from headrace.http.problem import Problem
from headrace.model.errors import InvalidRequest
from headrace.model.ids import MessageId, message_id_from_text

_KEPT_MAX = 10_000
_DIGITS_MAX = 18  # offsets of up to 18 digits always fit into 64 bits
_ANY_EPOCH = -1
_ANY_MEMBER = ""


class ReceiptParser:
    def __init__(self) -> None:
        self._parsed: dict[tuple[str, str], LeaseReceipt] = {}

    def read(self, text: str, topic: str, *, by_id: bool) -> LeaseReceipt:
        """Parse the receipt of a message of this topic, or raise `Problem` 422. `by_id` means that the text is a
        message id, which stands for the current lease of the message, whichever client holds it."""
        found, rest = (text, "") if by_id else _parts(text)
        place, _, digits = found.rpartition(":")
        kept = self._parsed.get((place, rest)) if by_id or rest else None
        if kept is not None and len(digits) <= _DIGITS_MAX and digits.isdigit() and digits.isascii():
            (found_topic, partition, _), attempt, epoch, member = kept
            receipt = LeaseReceipt(MessageId(found_topic, partition, int(digits)), attempt, epoch, member)
        else:
            receipt = _parse(text, by_id=by_id)
            if len(self._parsed) >= _KEPT_MAX:
                self._parsed.clear()
            self._parsed[place, rest] = receipt
        if receipt.id.topic != topic:
            raise Problem(
                422,
                "other_topic",
                f"message {receipt.id} does not belong to topic {topic!r} of this subscription",
                "settle it in the subscription from which it was pulled",
            )
        return receipt


def _parts(text: str) -> tuple[str, str]:
    """Split into the message id and the rest."""
    found, _, rest = text.partition("/")
    return found, rest


def _parse(text: str, *, by_id: bool) -> LeaseReceipt:
    try:
        return (
            LeaseReceipt(message_id_from_text(text), _ANY_EPOCH, _ANY_EPOCH, _ANY_MEMBER)
            if by_id
            else receipt_from_text(text)
        )
    except InvalidRequest as error:
        code = "invalid_message_id" if by_id else "invalid_receipt"
        raise Problem(422, code, error.message[:400], "send the receipt exactly as returned by the pull") from None
