"""Opening batches for subscriptions whose deliveries depend on what is in a message: key, priority, filter, expiry.

Batches are opened in order, each once per subscription, a piece at a time. Whatever is not a message (control batches,
records of aborted transactions, what compaction took) is left out, and so is settled as a gap.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.batches import batches_of, is_aborted
from headrace.machines.filters import Filter, compile_filter
from headrace.machines.partition_transactions import AbortedTransaction
from headrace.machines.subscription_answers import Opened
from headrace.model.message_headers import PRIORITY_DEFAULT, expires_ms_of, priority_of
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.batch import Record, read_records

_UNPACKED_BYTES_MAX = 64 << 20


class Opener:
    """How messages look to one configuration, from which it is made."""

    __slots__ = ("_expires", "_filter", "_has_priorities", "_orders_keys", "config")

    def __init__(self, config: SubscriptionConfig) -> None:
        self.config = config
        self._filter: Filter | None = compile_filter(config.headrace_filter) if config.headrace_filter else None
        self._has_priorities = bool(config.headrace_priority_slack_ms)
        self._expires = config.headrace_expiry_enable
        self._orders_keys = config.headrace_key_concurrency > 0

    def open(self, data: bytes, from_offset: int, aborted: Sequence[AbortedTransaction] = ()) -> list[Opened]:
        """The messages of these batches from that offset on."""
        messages: list[Opened] = []
        for batch, header in batches_of(data):
            if header.is_control or is_aborted(header, aborted):
                continue
            messages += [
                self._opened(record)
                for record in read_records(batch, header, _UNPACKED_BYTES_MAX)
                if record.offset >= from_offset
            ]
        return messages

    def _opened(self, record: Record) -> Opened:
        headers = record.headers
        return Opened(
            record.offset,
            priority_of(headers) if self._has_priorities and headers else PRIORITY_DEFAULT,
            record.key if self._orders_keys else None,  # not needed otherwise: saves memory
            record.timestamp_ms,
            expires_ms_of(headers, record.timestamp_ms) if self._expires and headers else None,
            self._filter is None or self._filter(record.key, headers),
        )
