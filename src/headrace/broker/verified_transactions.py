"""What coordinators on other brokers have confirmed: that a partition led here is part of a producer's transaction.

A confirmation is asked for before the first batch of a transaction, and counts until its marker arrives. A marker that
arrives between the question and its answer takes the question back: the answer speaks of a transaction that is over,
and a batch appended on its word would wait for a marker that never comes. So does a new lead of the partition: the
marker may have come to the leader in between.
"""

from __future__ import annotations

from headrace.broker.partition import Partition
from headrace.machines.transaction_state import Producer


class Question:
    """Whether a transaction holds a partition; `is_confirmed` once its coordinator has said so."""

    __slots__ = ("is_confirmed", "leader_epoch", "producer_epoch")

    def __init__(self, producer_epoch: int, leader_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.leader_epoch = leader_epoch
        self.is_confirmed = False


class VerifiedTransactions:
    def __init__(self) -> None:
        self._questions: dict[Partition, dict[int, Question]] = {}

    def ask(self, partition: Partition, producer: Producer) -> Question:
        """To be confirmed, or given up, when the answer is there."""
        question = self._find(partition, producer)
        if question is None:
            question = Question(producer.epoch, partition.leader_epoch)
            self._questions.setdefault(partition, {})[producer.id] = question
        return question

    def give_up(self, partition: Partition, producer: Producer, question: Question) -> None:
        """There was no answer, or a bad one."""
        if self._find(partition, producer) is question and not question.is_confirmed:
            self.forget(partition, producer.id)

    def holds(self, partition: Partition, producer: Producer) -> bool:
        question = self._find(partition, producer)
        return question is not None and question.is_confirmed

    def forget(self, partition: Partition, producer_id: int) -> None:
        """The producer's transaction ends here: nothing that was asked before counts any more."""
        questions = self._questions.get(partition)
        if questions is not None and questions.pop(producer_id, None) is not None and not questions:
            del self._questions[partition]

    def forget_partition(self, partition: Partition) -> None:
        """This broker does not lead it any more."""
        self._questions.pop(partition, None)

    def _find(self, partition: Partition, producer: Producer) -> Question | None:
        question = self._questions.get(partition, {}).get(producer.id)
        return question if question is not None and _fits(question, partition, producer) else None


def _fits(question: Question, partition: Partition, producer: Producer) -> bool:
    return question.producer_epoch == producer.epoch and question.leader_epoch == partition.leader_epoch
