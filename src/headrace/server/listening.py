"""Why a server cannot listen where it was told to, in words that help."""

from __future__ import annotations

import errno

from headrace.model.errors import InvalidConfig
from headrace.server.settings import Address, show_address


def cannot_listen(option: str, address: Address, error: OSError) -> InvalidConfig:
    if error.errno == errno.EADDRINUSE:
        return InvalidConfig(
            f"{show_address(*address)} is taken; stop the other server, or choose another with {option}"
        )
    return InvalidConfig(
        f"cannot listen on {show_address(*address)}: {error.strerror or error}; choose another with {option}"
    )
