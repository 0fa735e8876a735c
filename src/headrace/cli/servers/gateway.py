"""`headrace gateway`: serve the REST API in a separate process, in front of brokers on other hosts."""

from __future__ import annotations

import gc
from typing import Any

import click

from headrace.cli.options import listener_options, usage_errors


@click.command()
@click.option(
    "--bootstrap",
    envvar="HEADRACE_SERVER",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT[,...]",
    help="Bootstrap brokers.",
)
@click.option(
    "--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="The address to listen on."
)
@click.option("--publish-only", is_flag=True, help="Serve only the requests of publishers.")
@click.option("--subscribe-only", is_flag=True, help="Serve only the requests of subscribers.")
@listener_options
def gateway(
    *,
    bootstrap: str,
    http: str,
    publish_only: bool,
    subscribe_only: bool,
    http_tls_cert: str | None,
    http_tls_key: str | None,
    **listener: Any,
) -> int:
    """Serve the REST API in front of brokers.

    Prints one line that begins with `ready` when a broker has responded. SIGTERM or Ctrl-C shuts it down gracefully:
    requests in progress complete first. A gateway is stateless: run any number of them behind a load balancer.
    """
    if publish_only and subscribe_only:
        raise click.UsageError("--publish-only and --subscribe-only exclude each other; to serve both, omit both")
    from headrace.server.settings import GatewaySettings

    with usage_errors():
        settings = GatewaySettings.from_options(
            bootstrap=bootstrap,
            http=http,
            side="publish" if publish_only else "subscribe" if subscribe_only else None,
            tls=(http_tls_cert, http_tls_key),
            **listener,
        )
    # Imported objects are never garbage: excluding them makes garbage collections shorter.
    gc.disable()
    from headrace.server.gateway import run_gateway

    gc.freeze()
    gc.enable()
    return run_gateway(settings)
