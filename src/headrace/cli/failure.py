"""What a failed command says: one line, the cause and the next step, and its exit code."""

from __future__ import annotations

import click

from headrace.client.errors import ConnectionLost, DeliveryTimedOut, SubscriptionNotFound, Unreachable, VersionMismatch
from headrace.model import errors
from headrace.model.errors import HeadraceError

FAILED = 1
UNREACHABLE = 3

# The first class that fits decides, so the narrower stand before the wider.
_NEXT_STEP: tuple[tuple[type[HeadraceError], str], ...] = (
    (Unreachable, "start a broker with `headrace serve`, or name another with --server HOST:PORT"),
    (ConnectionLost, "try again; `headrace doctor` shows whether the broker is well"),
    (VersionMismatch, "`headrace doctor` shows the broker's versions"),
    (DeliveryTimedOut, "`headrace doctor` shows whether the broker is well"),
    (errors.UnknownTopicOrPartition, "`headrace topic list` shows what there is"),
    (errors.TopicAlreadyExists, "`headrace topic describe NAME` shows it"),
    (errors.InvalidConfig, "`headrace topic describe NAME --configs` shows all settings"),
    (errors.InvalidPartitions, "`headrace topic describe NAME` shows how many it has"),
    (errors.InvalidReplicationFactor, "leave out --replication-factor to take the broker's default"),
    (errors.InvalidReplicaAssignment, "`headrace cluster info` shows the brokers"),
    (errors.NoReassignmentInProgress, "`headrace cluster reassign status` shows the moves"),
    (errors.MessageTooLarge, "raise it by `headrace topic alter NAME --set max.message.bytes=N`"),
    (errors.TransactionalIdNotFound, "`headrace transaction list` shows what there is"),
    (errors.InvalidTransactionState, "`headrace transaction describe ID` shows it"),
    (SubscriptionNotFound, "`headrace subscription list` shows what there is"),
    (errors.GroupIdNotFound, "`headrace group list` shows what there is"),
    (errors.GroupNotEmpty, "stop its members first; `headrace group describe NAME` shows them"),
    (errors.OffsetOutOfRange, "`headrace topic describe NAME` shows the offsets"),
    (errors.RequestTimedOut, "try again; `headrace doctor` shows whether the broker is well"),
)


class Failure(click.ClickException):
    """Ends the command with one line."""

    exit_code = FAILED


class NobodyThere(Failure):
    """No broker could be reached."""

    exit_code = UNREACHABLE


def failure_of(error: HeadraceError | OSError) -> Failure:
    """The line and the exit code for an error."""
    if isinstance(error, OSError):
        return Failure(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    message = error.message.rstrip(".")
    message = message[:1].lower() + message[1:] if message[1:2].islower() else message
    for kind, step in _NEXT_STEP:
        if isinstance(error, kind):
            line = f"{message}; {step}"
            return NobodyThere(line) if kind is Unreachable else Failure(line)
    return Failure(message)
