"""Parse NAME=VALUE pairs of options."""

from __future__ import annotations

from collections.abc import Sequence

import click


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Parse the pairs; the last one of a name applies."""
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{text!r} is invalid; write NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings
