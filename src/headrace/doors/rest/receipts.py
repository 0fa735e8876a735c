"""Parse receipts and message ids, of which a request may contain many; an invalid one does not affect the others.

The common parts of the receipts of a pull (topic, partition, attempt, epoch, member) are parsed once and cached, so
that for most receipts only the offset is parsed.
"""

from __future__ import annotations

from headrace.client.leased import Receipt, receipt_from_text
from headrace.http.problem import Problem
from headrace.model.errors import InvalidRequest
from headrace.model.message_ids import MessageId, message_id_from_text

_KEPT_MAX = 10_000
_DIGITS_MAX = 18  # offsets of up to 18 digits always fit into 64 bits
_ANY = -1
_ANYBODY = ""


class Receipts:
    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Receipt] = {}

    def read(self, text: str, topic: str, *, by_id: bool) -> Receipt:
        """Parse the receipt of a message of this topic, or raise `Problem` 422. `by_id` means that the text is a
        message id, which stands for the current lease of the message, whichever client holds it."""
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
                f"message {receipt.id} does not belong to topic {topic!r} of this subscription",
                "settle it in the subscription from which it was pulled",
            )
        return receipt


def _parts(text: str) -> tuple[str, str]:
    """Split into the message id and the rest."""
    found, _, rest = text.partition("/")
    return found, rest


def _parse(text: str, *, by_id: bool) -> Receipt:
    try:
        return Receipt(message_id_from_text(text), _ANY, _ANY, _ANYBODY) if by_id else receipt_from_text(text)
    except InvalidRequest as error:
        code = "invalid_message_id" if by_id else "invalid_receipt"
        raise Problem(422, code, error.message[:400], "send the receipt exactly as returned by the pull") from None
