"""`headrace zookeeper`: run ZooKeeper in the foreground, for clusters without an existing ensemble."""

from __future__ import annotations

import click

from headrace.cli.options import usage_errors


@click.command()
@click.option("--data", metavar="DIR", default="zookeeper-data", show_default=True, help="The data folder.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:2181",
    show_default=True,
    help="Address of the first; others use the next ports.",
)
@click.option(
    "--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="The number of servers on this host."
)
@click.option("--insecure", is_flag=True, help="Allow listening on other than loopback addresses.")
def zookeeper(*, data: str, listen: str, nodes: int, insecure: bool) -> int:
    """Start ZooKeeper.

    Prints one line that begins with `ready` when it accepts connections. SIGTERM or Ctrl-C shuts it down gracefully.
    With --nodes 3 it tolerates the failure of one server, but because all run on one host, this is mainly for tests.
    """
    from headrace.server.settings import parse_address
    from headrace.server.zookeeper import ZooKeeperSettings, run_zookeeper

    with usage_errors():
        address = parse_address(listen, "--listen")
    return run_zookeeper(ZooKeeperSettings(data=data, listen=address, nodes=nodes, insecure=insecure))
