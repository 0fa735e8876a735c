"""`headrace version`."""

from __future__ import annotations

import platform

import click

from headrace import __version__
from headrace.cli.output import echo, output_option, to_json, wants_json


@click.command()
@output_option
def version(output: str | None) -> None:
    """Print the versions of Headrace and of Python."""
    python = platform.python_version()
    if wants_json(output):
        echo(to_json({"headrace": __version__, "python": python}))
    else:
        echo(f"headrace {__version__} (Python {python})")
