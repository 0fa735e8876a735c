"""Errors of authentication and authorization requests, which the Kafka listener does not support."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError


class IllegalSaslState(HeadraceError):
    """This listener does not authenticate clients; connect without SASL."""

    code = 34


class SecurityDisabled(HeadraceError):
    """Authentication and authorization are disabled on this listener; every client has full access."""

    code = 54


class ResourceNotFound(HeadraceError):
    """The resource does not exist."""

    code = 91
