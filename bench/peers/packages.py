"""Peers that come as Debian packages; installing needs root and happens only for peers asked for."""

from __future__ import annotations

from bench.cache import run_tool


def install_package(name: str) -> None:
    # The package must not start its own service: the harness starts and measures one itself.
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "SYSTEMD_OFFLINE": "1"}
    run_tool(["apt-get", "update"], environment=quiet)
    run_tool(["apt-get", "install", "-y", "--no-install-recommends", name], environment=quiet)
