"""Confirmations of coordinators on other brokers that a partition is part of a producer's transaction.

- The leader requests a confirmation before the first batch of a transaction; it is valid until the marker arrives.
- A marker that arrives between the request and its response cancels the verification: the response is about a
  transaction that has ended, and a batch that is appended because of it would wait forever for a marker.
- A new term of the leader cancels it as well, because the marker may have been written by another leader in between.
"""

from __future__ import annotations

from headrace.broker.partition import Partition
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch


class Verification:
    """The verification of a transaction for a partition; `is_confirmed` when the coordinator has responded."""

    __slots__ = ("epochs", "is_confirmed")

    def __init__(self, epochs: tuple[int, int]) -> None:
        self.epochs = epochs  # of the producer and of the leader
        self.is_confirmed = False


class VerifiedTransactions:
    def __init__(self) -> None:
        self._verifications: dict[Partition, dict[int, Verification]] = {}

    def begin_verification(self, partition: Partition, producer: ProducerIdAndEpoch) -> Verification:
        """Begin a verification, to be confirmed or cancelled when the response arrives."""
        verification = self._find(partition, producer)
        if verification is None:
            verification = Verification((producer.epoch, partition.leader_epoch))
            self._verifications.setdefault(partition, {})[producer.id] = verification
        return verification

    def give_up(self, partition: Partition, producer: ProducerIdAndEpoch, verification: Verification) -> None:
        """The coordinator did not confirm it."""
        if self._find(partition, producer) is verification and not verification.is_confirmed:
            self.forget(partition, producer.id)

    def holds(self, partition: Partition, producer: ProducerIdAndEpoch) -> bool:
        verification = self._find(partition, producer)
        return verification is not None and verification.is_confirmed

    def forget(self, partition: Partition, producer_id: int) -> None:
        """The producer's transaction ends here, which cancels earlier verifications."""
        verifications = self._verifications.get(partition)
        if verifications is not None and verifications.pop(producer_id, None) is not None and not verifications:
            del self._verifications[partition]

    def forget_partition(self, partition: Partition) -> None:
        """This broker no longer leads the partition."""
        self._verifications.pop(partition, None)

    def _find(self, partition: Partition, producer: ProducerIdAndEpoch) -> Verification | None:
        verification = self._verifications.get(partition, {}).get(producer.id)
        if verification is None or verification.epochs != (producer.epoch, partition.leader_epoch):
            return None
        return verification
