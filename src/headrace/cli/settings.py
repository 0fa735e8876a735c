"""NAME=VALUE pairs, as options take them."""

from __future__ import annotations

from collections.abc import Sequence

import click


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """The pairs; a later one of the same name wins."""
    settings = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{text!r} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings
