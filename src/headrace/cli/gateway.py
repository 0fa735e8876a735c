"""`headrace gateway`: the REST door as a process of its own, in front of brokers that run elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import click

from headrace.cli.door_options import door_options
from headrace.model.errors import HeadraceError


@click.command()
@click.option(
    "--bootstrap",
    envvar="HEADRACE_SERVER",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT[,...]",
    help="Brokers to begin with.",
)
@click.option("--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen.")
@click.option("--publish-only", is_flag=True, help="Serve what publishers need, and nothing else.")
@click.option("--subscribe-only", is_flag=True, help="Serve what subscribers need, and nothing else.")
@door_options
def gateway(
    *,
    bootstrap: str,
    http: str,
    publish_only: bool,
    subscribe_only: bool,
    auth: bool,
    open_metrics: bool,
    http_hosts: Sequence[str],
    http_tls_cert: str | None,
    http_tls_key: str | None,
    push_private: bool,
    insecure: bool,
    log_level: str,
    log_format: str,
) -> int:
    """Serve the REST API in front of brokers.

    Prints one line that begins with `ready` when a broker has answered. SIGTERM or Ctrl-C ends it in order: what is
    under way is finished first. It keeps nothing: run as many as you like behind a load balancer.
    """
    if publish_only and subscribe_only:
        raise click.UsageError("--publish-only and --subscribe-only exclude each other; for both sides leave out both")
    from headrace.server.gateway_settings import GatewaySettings

    try:
        told = GatewaySettings.of(
            bootstrap=bootstrap,
            http=http,
            http_hosts=tuple(http_hosts),
            side="publish" if publish_only else "subscribe" if subscribe_only else None,
            auth=auth,
            open_metrics=open_metrics,
            tls=(http_tls_cert, http_tls_key),
            push_private=push_private,
            insecure=insecure,
            log_level=log_level,
            log_format=log_format,
        )
    except HeadraceError as error:
        raise click.UsageError(error.message) from None
    # Nothing that is imported is ever garbage, so the collector need not look at it, neither now nor later.
    gc.disable()
    from headrace.server.gateway import run_gateway

    gc.freeze()
    gc.enable()
    return run_gateway(told)
