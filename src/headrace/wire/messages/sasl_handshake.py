"""SaslHandshake (17): a client says by which mechanism it will prove who it is.

v1 has the same shape; what would follow it differs.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, STRING, array, message, wire


@message(versions=(0, 1))
class SaslHandshakeRequest:
    mechanism: str = wire(STRING)


@message(versions=(0, 1))
class SaslHandshakeResponse:
    error_code: int = wire(INT16)
    mechanisms: list[str] = wire(array(STRING))
