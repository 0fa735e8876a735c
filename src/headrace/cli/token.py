"""`headrace token ...`: manage access tokens of the REST API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from headrace.cli.cluster_client import with_cluster
from headrace.cli.failure import CommandFailed
from headrace.cli.options import DURATION, ParsedType, confirm, server_option, yes_option
from headrace.cli.output import echo, local_time, output_option, print_rows, print_status, to_json, wants_json
from headrace.client.admin.tokens import TokenAdmin
from headrace.client.cluster import Cluster
from headrace.model.tokens import parse_scope

SCOPE = ParsedType("scope", lambda text: str(parse_scope(text)))


@click.group()
def token() -> None:
    """Create, list and revoke access tokens of the REST API."""


@token.command()
@click.argument("name")
@click.option(
    "-s",
    "--scope",
    "scopes",
    type=SCOPE,
    multiple=True,
    required=True,
    metavar="VERB:TOPIC",
    help="VERB:TOPIC, where VERB is publish, consume, read, metrics or manage, and TOPIC may end with *; repeatable.",
)
@click.option(
    "-e", "--expires", type=DURATION, metavar="DURATION", help="Lifetime, for example 30d; default: unlimited."
)
@click.option("-r", "--rate", type=click.IntRange(1), metavar="N", help="Requests per second; default: no limit.")
@click.option("--burst", type=click.IntRange(1), metavar="N", help="Maximum burst of requests; default: as --rate.")
@server_option
@output_option
def create(
    name: str,
    *,
    scopes: Sequence[str],
    expires: int | None,
    rate: int | None,
    burst: int | None,
    server: str,
    output: str | None,
) -> None:
    """Create a token with the name NAME and print it. It cannot be displayed again."""
    if burst is not None and rate is None:
        raise click.UsageError("--burst requires --rate")

    async def work(cluster: Cluster) -> tuple[str, str, int | None]:
        expires_ms = None if expires is None else cluster.clock.now_ms() + expires
        created = await TokenAdmin(cluster).create(
            name, scopes, expires_ms=expires_ms, requests_per_second=rate, burst=burst
        )
        return *created, expires_ms

    token_id, text, expires_ms = with_cluster(server, work)
    if wants_json(output):
        row = {
            "token": text,
            "id": token_id,
            "name": name,
            "scopes": list(scopes),
            "expires_at": local_time(expires_ms),
        }
        echo(to_json(row | {"expires_at": local_time(expires_ms)}))
    else:
        echo(text)
        print_status(f"token {token_id} created; save it now, it cannot be displayed again")


@token.command("list")
@server_option
@output_option
def list_tokens(server: str, output: str | None) -> None:
    """List tokens without their secrets."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        now_ms = cluster.clock.now_ms()
        return [
            {
                "id": view.id,
                "name": view.name,
                "scopes": list(view.scopes),
                "created_at": local_time(view.created_ms),
                "expires_at": local_time(view.expires_ms),
                "rate": view.requests_per_second,
                "burst": None if view.requests_per_second is None else view.burst,
                "expired": view.expires_ms is not None and view.expires_ms <= now_ms,
            }
            for view in await TokenAdmin(cluster).list()
        ]

    rows = with_cluster(server, work)
    print_rows(rows, ("id", "name", "scopes", "created_at", "expires_at", "rate", "burst", "expired"), output)


@token.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@yes_option
@server_option
def revoke(ids: Sequence[str], yes: bool, server: str) -> None:
    """Revoke tokens by their ids. All brokers reject them within 5 seconds."""
    confirm(f"Revoke {', '.join(ids)}?", yes)
    revoked = with_cluster(server, lambda cluster: TokenAdmin(cluster).revoke(ids))
    for token_id in revoked:
        print_status(f"token {token_id} revoked")
    missing = [token_id for token_id in ids if token_id not in revoked]
    if missing:
        raise CommandFailed(f"token {', '.join(missing)} does not exist; `headrace token list` shows all tokens")
