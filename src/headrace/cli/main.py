"""The `headrace` command. Only the subcommand that is called is imported, which keeps startup and help fast.

Exit codes: 0 success, 1 failure or a declined question, 2 usage error or an invalid config, 3 no broker reachable, 130
interrupted. Results go to stdout, everything else to stderr; an error is one line that begins with `error:` and
includes the next step.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from headrace.model.errors import HeadraceError

_COMMANDS = {
    "serve": ("servers.serve", "Start a broker."),
    "gateway": ("servers.gateway", "Serve the REST API in front of brokers."),
    "worker": ("servers.worker", "Run the handlers of an application."),
    "zookeeper": ("servers.zookeeper", "Start ZooKeeper for a cluster on several hosts."),
    "topic": ("topics.topic", "List, create, describe, alter, trim and delete topics."),
    "produce": ("topics.produce", "Write records from stdin, a file or an argument."),
    "consume": ("topics.consume", "Read records to stdout."),
    "tail": ("topics.consume", "Watch topics live."),
    "group": ("group", "List, describe, reset and delete consumer groups; show their lag."),
    "subscription": ("queues.subscription", "Create, show, seek and delete subscriptions; pull and ack messages."),
    "schedule": ("queues.schedule", "Add, list, cancel and reschedule delayed messages."),
    "dlq": ("queues.dead_letters", "List, show, redrive and discard dead letters."),
    "transaction": ("transaction", "List, describe and abort transactions; find hanging ones."),
    "pipeline": ("pipelines.pipeline", "Archive, replay, transform, report and audit topics with Spark."),
    "token": ("token", "Create, list and revoke access tokens of the REST API."),
    "cluster": ("cluster.cluster", "Show brokers and partitions, check health, move, drain and elect."),
    "top": ("diagnostics.top", "Watch brokers, topics, subscriptions and groups live."),
    "archive": ("pipelines.archive", "Show, verify and compact archives of topics."),
    "log": ("storage.log", "Inspect a data folder: dump, verify, adopt and purge logs."),
    "registry": ("storage.registry", "Rebuild a lost registry from the logs."),
    "bench": ("diagnostics.bench", "Generate load on a broker."),
    "doctor": ("diagnostics.doctor", "Check this machine and a broker, and suggest fixes."),
    "version": ("version", "Print the version."),
}


class LazyGroup(click.Group):
    """A group that knows the names and help lines of its commands, and imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(f"headrace.cli.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            similar = get_close_matches(args[0], _COMMANDS, n=1)
            hint = f". Did you mean {similar[0]!r}?" if similar else "."
            ctx.fail(f"No such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The process that reads the output has closed the pipe, which is not a failure. Python must not flush to
            # the pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
        from headrace import __version__
        from headrace.cli.output import echo

        echo(f"headrace {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def headrace() -> None:
    """Headrace: one write-ahead log that serves streams and queues.

    \b
    headrace serve                         start a broker on this machine
    echo hello | headrace produce orders   write a record
    headrace consume orders -e             read it back
    """


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code. Only a bug in Headrace results in a traceback."""
    try:
        result: Any = headrace.main(args=arguments, prog_name="headrace", standalone_mode=False)
    except click.UsageError as error:
        return _print_usage_error(error)
    except click.ClickException as error:
        return _print_error(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (HeadraceError, OSError) as error:
        from headrace.cli.failure import failure_of_error

        failure = failure_of_error(error)
        return _print_error(failure.message, failure.exit_code)
    return result if isinstance(result, int) else 0


def _print_usage_error(error: click.UsageError) -> int:
    from headrace.cli.output import echo

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        echo(*error.format_message().split("\n"), err=True)
        return error.exit_code
    path = error.ctx.command_path if error.ctx is not None else "headrace"
    message = error.format_message().rstrip(".")
    return _print_error(f"{message}{' See' if message.endswith('?') else '; see'} `{path} --help`", error.exit_code)


def _print_error(message: str, exit_code: int) -> int:
    from headrace.cli.output import echo

    echo(f"error: {' '.join(message.split())}", err=True)
    return exit_code
