"""`headrace serve`: a broker in the foreground. Flags win over the file, the file over the defaults."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import click

from headrace.cli.settings import parse_settings
from headrace.model.errors import HeadraceError


@click.command()
@click.option("--data", metavar="DIR", default="headrace-data", show_default=True, help="Where records are kept.")
@click.option("--kafka", metavar="HOST:PORT", default="127.0.0.1:9092", show_default=True, help="Kafka's protocol.")
@click.option("--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Health and metrics.")
@click.option("--node-id", type=click.IntRange(0), default=1, show_default=True, help="This broker's number.")
@click.option("--advertised", metavar="HOST:PORT", help="What clients are told to connect to; else --kafka.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A broker config by Kafka's name; repeatable.",
)
@click.option("--config", metavar="FILE.toml", type=click.Path(exists=True, dir_okay=False), help="[broker] configs.")
@click.option("--insecure", is_flag=True, help="Allow other hosts in, without TLS and authentication.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def serve(
    *,
    data: str,
    kafka: str,
    http: str,
    node_id: int,
    advertised: str | None,
    settings: Sequence[str],
    config: str | None,
    insecure: bool,
    log_level: str,
) -> int:
    """Start a broker.

    Prints one line that begins with `ready` when it serves. SIGTERM or Ctrl-C ends it in order.
    """
    # Nothing that is imported is ever garbage, so the collector need not look at it, neither now nor later.
    gc.disable()
    from headrace.server.main import serve as run_server
    from headrace.server.settings import ServeSettings, parse_address, read_config_file

    gc.freeze()
    gc.enable()
    try:
        return run_server(
            ServeSettings(
                data=data,
                kafka=parse_address(kafka, "--kafka"),
                http=parse_address(http, "--http"),
                node_id=node_id,
                advertised=None if advertised is None else parse_address(advertised, "--advertised"),
                broker=(read_config_file(config) if config else {}) | parse_settings(settings),
                insecure=insecure,
                log_level=log_level,
            )
        )
    except HeadraceError as error:
        from headrace.cli.failure import failure_of  # with it comes the whole client, which a broker does without

        raise failure_of(error) from error
