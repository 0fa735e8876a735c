"""Settle pulled messages: ack, nack, extend and reject, one or many per request.

- A receipt settles the message in the lease of that receipt, and fails when that lease has expired. A message id
  settles the message in its current lease, regardless of which client holds it; this is simpler, but lacks that
  protection.
- Any process can settle a message; it need not be the one that leased it.
- Each message of a request has its own result; an invalid receipt does not affect the others.
- Single acks that arrive while others of their partition are in flight are sent together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.queues.feed import FeedRegistry
from headrace.client.queues.leased_messages import LeaseReceipt, receipt_from_text
from headrace.client.queues.settling import ACK, EXTEND, NACK, REJECT, AckBatcher, FailedSettlement, settle
from headrace.http.message import JSON, Request, Response, json_response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Route, Verb
from headrace.model.errors import GroupIdNotFound, InvalidRequest, UnknownTopicOrPartition
from headrace.model.ids import MessageId, message_id_from_text
from headrace.protocols.rest.bodies import Duration, duration_ms, parse_body
from headrace.protocols.rest.error_responses import problem_of_error
from headrace.protocols.rest.pull import lease_ms
from headrace.protocols.rest.subscription_directory import TOPIC_PARAMETER, SubscriptionDirectory
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.messages.queues import SettleItem

_KEPT_MAX = 10_000
_DIGITS_MAX = 18  # offsets of up to 18 digits always fit into 64 bits
_ANY_EPOCH = -1
_ANY_MEMBER = ""


class ReceiptParser:
    """Parses receipts and message ids. The receipts of one pull share topic, partition, attempt, epoch and member:
    these are parsed once and cached, so that for most receipts only the offset is parsed."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, str], LeaseReceipt] = {}

    def read(self, text: str, topic: str, *, by_id: bool) -> LeaseReceipt:
        """Parse the receipt of a message of this topic, or raise `Problem` 422. `by_id` means that the text is a
        message id, which stands for the current lease of the message, regardless of which client holds it."""
        found, _, rest = (text, "", "") if by_id else text.partition("/")
        prefix, _, digits = found.rpartition(":")
        kept = self._parsed.get((prefix, rest)) if by_id or rest else None
        if kept is not None and len(digits) <= _DIGITS_MAX and digits.isdigit() and digits.isascii():
            (found_topic, partition, _), attempt, epoch, member = kept
            receipt = LeaseReceipt(MessageId(found_topic, partition, int(digits)), attempt, epoch, member)
        else:
            receipt = _parse(text, by_id=by_id)
            if len(self._parsed) >= _KEPT_MAX:
                self._parsed.clear()
            self._parsed[prefix, rest] = receipt
        if receipt.id.topic != topic:
            raise Problem(
                422,
                "other_topic",
                f"message {receipt.id} does not belong to topic {topic!r} of this subscription",
                "settle it in the subscription from which it was pulled",
            )
        return receipt


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


SETTLED_MAX = 1000
_BODY_BYTES_MAX = 1 << 20
_GATHERED_MAX = 1000  # subscriptions with batched acks
_UNSET = -1

_Ids = Annotated[list[str], Meta(min_length=1, max_length=SETTLED_MAX)]
_Reason = Annotated[str, Meta(max_length=1000)]


class SettleSelection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The messages to settle: exactly one of these fields."""

    receipt: str | UnsetType = UNSET
    receipts: _Ids | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    message_ids: _Ids | UnsetType = UNSET


class AckBody(SettleSelection, kw_only=True, forbid_unknown_fields=True):
    """Acknowledge messages as processed."""


class NackBody(SettleSelection, kw_only=True, forbid_unknown_fields=True):
    """Release messages for redelivery after the delay, by default as the subscription is configured."""

    delay: Duration | UnsetType = UNSET
    reason: _Reason | None = None


class ExtendBody(SettleSelection, kw_only=True, forbid_unknown_fields=True):
    """Extend leases by this duration from now, by default as the subscription is configured."""

    lease: Duration | UnsetType = UNSET


class RejectBody(SettleSelection, kw_only=True, forbid_unknown_fields=True):
    """Turn messages into dead letters, because they cannot be processed."""

    reason: _Reason | None = None


class UnsettledMessage(msgspec.Struct, omit_defaults=True):
    """A message that was not settled. `code` is stable and is that of a problem."""

    code: str
    message: str
    receipt: str | None = None
    message_id: str | None = None


class SettledMessages(msgspec.Struct):
    """The number of settled messages, and the messages that were not settled."""

    settled: int
    refused: list[UnsettledMessage]


_ACK = msgspec.json.Decoder(AckBody)
_NACK = msgspec.json.Decoder(NackBody)
_EXTEND = msgspec.json.Decoder(ExtendBody)
_REJECT = msgspec.json.Decoder(RejectBody)
_ONE_SETTLED = msgspec.json.encode(SettledMessages(1, []))


class SettleRoutes:
    """`feeds` are notified of settled messages, because receivers of streams use these requests as well."""

    def __init__(self, cluster: Cluster, directory: SubscriptionDirectory, feeds: FeedRegistry) -> None:
        self._cluster = cluster
        self._directory = directory
        self._feeds = feeds
        self._receipts = ReceiptParser()
        self._acks: dict[str, AckBatcher] = {}

    def routes(self) -> list[Route]:
        return [
            self._route("ack", self.ack, AckBody, "Acknowledge messages"),
            self._route("nack", self.nack, NackBody, "Release messages for redelivery"),
            self._route("extend", self.extend, ExtendBody, "Extend leases"),
            self._route("reject", self.reject, RejectBody, "Turn messages into dead letters"),
        ]

    def _route(self, verb: str, handle: Callable[[Request], Awaitable[Response]], body: type, summary: str) -> Route:
        return Route(
            "POST",
            f"/subscriptions/{{subscription}}/{verb}",
            handle,
            Access(Verb.CONSUME, AccessSubject.SUBSCRIPTION),
            Operation(summary, {200: SettledMessages}, body, (TOPIC_PARAMETER,)),
            ForwarderRole.SUBSCRIBE,
            _BODY_BYTES_MAX,
        )

    async def ack(self, request: Request) -> Response:
        body = parse_body(request, _ACK)
        if body.receipts is not UNSET or body.message_ids is not UNSET:
            return await self._settle_as(request, body, SettleItem(how=ACK))
        return await self._settle(request, body, self._batcher_of(request.params["subscription"]).ack)

    async def nack(self, request: Request) -> Response:
        body = parse_body(request, _NACK)
        delay_ms = _UNSET if body.delay is UNSET else duration_ms(body.delay, "delay")
        return await self._settle_as(request, body, SettleItem(how=NACK, delay_ms=delay_ms, reason=body.reason))

    async def extend(self, request: Request) -> Response:
        body = parse_body(request, _EXTEND)
        time_ms = _UNSET if body.lease is UNSET else lease_ms(body.lease)
        return await self._settle_as(request, body, SettleItem(how=EXTEND, lease_ms=time_ms))

    async def reject(self, request: Request) -> Response:
        body = parse_body(request, _REJECT)
        return await self._settle_as(request, body, SettleItem(how=REJECT, reason=body.reason))

    async def _settle_as(self, request: Request, body: SettleSelection, how: SettleItem) -> Response:
        await switch_to_task()
        return await self._settle(
            request, body, lambda receipts: settle(self._cluster, request.params["subscription"], receipts, how)
        )

    async def _settle(self, request: Request, body: SettleSelection, settle_receipts: _SettleReceipts) -> Response:
        choice = _selected_messages(body)
        topic = request.params["topic"]
        receipts: dict[LeaseReceipt, str] = {}
        refused: list[UnsettledMessage] = []
        for text in choice.texts:
            try:
                receipts[self._receipts.read(text, topic, by_id=choice.by_id)] = text
            except Problem as problem:
                if choice.is_single:
                    raise
                refused.append(choice.failure_of(text, problem))
        failures = await settle_receipts([*receipts]) if receipts else []
        if self._feeds and not isinstance(body, ExtendBody):
            failed = {one.receipt for one in failures}
            self._feeds.settled(receipt for receipt in receipts if receipt not in failed)
        if not failures and not refused and choice.is_single:
            return Response(200, _ONE_SETTLED, JSON)
        if failures:
            self._raise_if_all_failed(request, failures, len(receipts), is_single=choice.is_single)
        refused += [choice.failure_of(receipts[one.receipt], problem_of_error(one.error)) for one in failures]
        return json_response(SettledMessages(len(receipts) - len(failures), refused))

    def _raise_if_all_failed(
        self, request: Request, failures: Sequence[FailedSettlement], count: int, *, is_single: bool
    ) -> None:
        """Raise an error that does not concern a single message for the whole request."""
        error = failures[0].error
        is_gone = isinstance(error, GroupIdNotFound | UnknownTopicOrPartition)
        if is_gone:
            self._directory.forget(request.params["subscription"])
        is_same = len(failures) == count and all(type(one.error) is type(error) for one in failures)
        if is_single or (is_same and (is_gone or error.retriable)):
            raise error

    def _batcher_of(self, name: str) -> AckBatcher:
        acks = self._acks.get(name)
        if acks is None:
            if len(self._acks) >= _GATHERED_MAX:
                self._acks.clear()  # acks in flight still complete
            acks = self._acks[name] = AckBatcher(self._cluster, name)
        return acks


_SettleReceipts = Callable[[Sequence[LeaseReceipt]], Awaitable[list[FailedSettlement]]]


class _SelectedMessages(NamedTuple):
    texts: Sequence[str]
    by_id: bool
    is_single: bool

    def failure_of(self, text: str, problem: Problem) -> UnsettledMessage:
        shown = UnsettledMessage(problem.code, problem.message)
        if self.by_id:
            shown.message_id = text
        else:
            shown.receipt = text
        return shown


def _selected_messages(body: SettleSelection) -> _SelectedMessages:
    choices = (body.receipt, False), (body.receipts, False), (body.message_id, True), (body.message_ids, True)
    given = [(chosen, by_id) for chosen, by_id in choices if not isinstance(chosen, UnsetType)]
    if len(given) != 1:
        raise Problem(
            422,
            "invalid_body",
            "the body must contain exactly one selection of messages",
            "specify exactly one of receipt, receipts, message_id and message_ids",
        )
    ((chosen, by_id),) = given
    if isinstance(chosen, str):
        return _SelectedMessages((chosen,), by_id, is_single=True)
    return _SelectedMessages(chosen, by_id, is_single=False)
