"""`headrace zookeeper`: ZooKeeper in the foreground, for clusters that have no ensemble to use yet."""

from __future__ import annotations

import click

from headrace.model.errors import HeadraceError


@click.command()
@click.option("--data", metavar="DIR", default="zookeeper-data", show_default=True, help="Where it keeps its data.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:2181", show_default=True, help="Of the first; others follow."
)
@click.option("--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="How many servers, all here.")
@click.option("--insecure", is_flag=True, help="Allow other hosts in, without TLS and authentication.")
def zookeeper(*, data: str, listen: str, nodes: int, insecure: bool) -> int:
    """Start ZooKeeper.

    Prints one line that begins with `ready` when it serves. SIGTERM or Ctrl-C ends it in order. With --nodes 3 it
    goes on when one of them fails; all of them being on one host, that serves tests more than availability.
    """
    from headrace.server.settings import parse_address
    from headrace.server.zookeeper import ZooKeeperSettings, run_zookeeper

    try:
        address = parse_address(listen, "--listen")
    except HeadraceError as error:
        raise click.UsageError(error.message) from error
    return run_zookeeper(ZooKeeperSettings(data=data, listen=address, nodes=nodes, insecure=insecure))
