"""Convert errors to the failure of a command: one line with the cause and the next step, and an exit code."""

from __future__ import annotations

import click

from headrace.client.errors import ConnectionLost, DeliveryTimedOut, SubscriptionNotFound, Unreachable, VersionMismatch
from headrace.model import errors
from headrace.model.errors import HeadraceError

FAILED = 1
INVALID_USAGE = 2
UNREACHABLE = 3

# The first matching class applies, so subclasses precede their base classes.
_NEXT_STEP: tuple[tuple[type[HeadraceError], str], ...] = (
    (Unreachable, "start a broker with `headrace serve`, or specify another one with --server HOST:PORT"),
    (ConnectionLost, "try again; `headrace doctor` checks the broker"),
    (VersionMismatch, "`headrace doctor` shows the broker's versions"),
    (DeliveryTimedOut, "`headrace doctor` checks the broker"),
    (errors.UnknownTopicOrPartition, "`headrace topic list` shows all topics"),
    (errors.TopicAlreadyExists, "`headrace topic describe NAME` shows it"),
    (errors.InvalidConfig, "`headrace topic describe NAME --configs` shows all settings"),
    (errors.InvalidPartitions, "`headrace topic describe NAME` shows the current number"),
    (errors.InvalidReplicationFactor, "omit --replication-factor to use the broker's default"),
    (errors.InvalidReplicaAssignment, "`headrace cluster info` shows the brokers"),
    (errors.NoReassignmentInProgress, "`headrace cluster reassign status` shows the moves"),
    (errors.MessageTooLarge, "raise the limit with `headrace topic alter NAME --set max.message.bytes=N`"),
    (errors.TransactionalIdNotFound, "`headrace transaction list` shows all transactional ids"),
    (errors.InvalidTransactionState, "`headrace transaction describe ID` shows it"),
    (SubscriptionNotFound, "`headrace subscription list` shows all subscriptions"),
    (errors.GroupIdNotFound, "`headrace group list` shows all groups"),
    (errors.GroupNotEmpty, "stop its members first; `headrace group describe NAME` shows them"),
    (errors.OffsetOutOfRange, "`headrace topic describe NAME` shows the offsets"),
    (errors.RequestTimedOut, "try again; `headrace doctor` checks the broker"),
)


class CommandFailed(click.ClickException):
    """End the command with a one-line error."""

    exit_code = FAILED


class InvalidValue(CommandFailed):
    """The broker rejected a value of the command line, such as the name of a config."""

    exit_code = INVALID_USAGE


class BrokersUnreachable(CommandFailed):
    """No broker could be reached."""

    exit_code = UNREACHABLE


_FAILURES: dict[type[HeadraceError], type[CommandFailed]] = {
    Unreachable: BrokersUnreachable,
    errors.InvalidConfig: InvalidValue,
}


def failure_of_error(error: HeadraceError | OSError) -> CommandFailed:
    """Return the failure with the line and the exit code for an error."""
    if isinstance(error, OSError):
        return CommandFailed(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    message = error.message.rstrip(".")
    message = message[:1].lower() + message[1:] if message[1:2].islower() else message
    for kind, step in _NEXT_STEP:
        if isinstance(error, kind):
            line = f"{message}; {step}"
            return _FAILURES.get(kind, CommandFailed)(line)
    return CommandFailed(message)
