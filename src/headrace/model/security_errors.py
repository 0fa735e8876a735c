"""The refusals of requests about users and their rights, of which Kafka's door knows none."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError


class IllegalSaslState(HeadraceError):
    """Clients are let in here without saying who they are; connect without SASL."""

    code = 34


class SecurityDisabled(HeadraceError):
    """There are no users and no access rules at this door."""

    code = 54


class ResourceNotFound(HeadraceError):
    """There is no such thing."""

    code = 91
