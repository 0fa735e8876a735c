"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import click

from headrace.model.errors import HeadraceError
from headrace.model.safe_text import escaped

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")

SERVER_DEFAULT = "127.0.0.1:9092"


def option_group(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine options, in the order of the help, into one decorator."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):  # decorators apply bottom up
            command = option(command)
        return command

    return decorate


logging_options = option_group(
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
    ),
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
)
_FILE = click.Path(exists=True, dir_okay=False)
listener_options = option_group(
    click.option("--auth", is_flag=True, help="Require an access token for every HTTP request; see `headrace token`."),
    click.option("--open-metrics", is_flag=True, help="Serve /metrics without a token even with --auth."),
    click.option(
        "--http-host",
        "http_hosts",
        metavar="NAME",
        multiple=True,
        help="A host name that HTTP clients use for this server; repeatable. Without --auth, requests to other host "
        "names are rejected.",
    ),
    click.option("--http-tls-cert", metavar="FILE", type=_FILE, help="Serve HTTPS with this certificate (PEM)."),
    click.option("--http-tls-key", metavar="FILE", type=_FILE, help="The private key of the certificate (PEM)."),
    click.option("--push-private", is_flag=True, help="Allow push to private addresses."),
    click.option(
        "--insecure",
        is_flag=True,
        help="Allow listening on other than loopback addresses without TLS and authentication.",
    ),
    logging_options,
)
"""The options of every process with an HTTP listener: authentication, TLS and logging."""


class ParsedType(click.ParamType[T]):
    """The type of an option whose text `parse` converts. Its ValueError or HeadraceError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return cast("T", value)
        try:
            return self._parse(value)
        except (ValueError, HeadraceError) as error:
            self.fail(str(error), param, ctx)


_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION_PART = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: str) -> int:
    """Return milliseconds, or raise ValueError with a message for the user."""
    parts = list(_DURATION_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write 500ms, 90s, 15m, 2h, 7d or 1h30m")
    return sum(int(part[1]) * _MILLISECONDS[part[2]] for part in parts)


DURATION = ParsedType("duration", parse_duration)
"""A duration, as milliseconds."""


def _check_server(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    from headrace.client.connections.address import parse_addresses  # `serve` starts without the client

    try:
        parse_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None
    return value


server_option = click.option(
    "--server",
    "--bootstrap-server",
    "server",
    envvar="HEADRACE_SERVER",
    default=SERVER_DEFAULT,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    callback=_check_server,
    help="Bootstrap brokers, separated by commas.",
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, but change nothing.")


def confirm(question: str, skip: bool) -> None:
    """Ask for confirmation of a destructive operation; without a terminal, --yes is required. Raise if declined."""
    if skip:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Use --yes to confirm without a terminal")
    if not click.confirm(escaped(question), err=True):
        raise click.ClickException("declined; nothing was changed")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn an error about the value of an option or argument into a usage error."""
    try:
        yield
    except HeadraceError as error:
        raise click.UsageError(error.message) from None


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Parse the pairs; the last one of a name applies."""
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{text!r} is invalid; write NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings
