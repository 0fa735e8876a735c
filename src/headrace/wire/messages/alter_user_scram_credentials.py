"""AlterUserScramCredentials (51): give users a password for SCRAM, or take it away."""

from __future__ import annotations

from headrace.wire.schema import BYTES, INT8, INT16, INT32, STRING, array, message, part, wire


@part
class ScramCredentialDeletion:
    name: str = wire(STRING)
    mechanism: int = wire(INT8)


@part
class ScramCredentialUpsertion:
    name: str = wire(STRING)
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)
    salt: bytes = wire(BYTES)
    salted_password: bytes = wire(BYTES)


@message(versions=(0, 0), flexible_since=0)
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = wire(array(ScramCredentialDeletion))
    upsertions: list[ScramCredentialUpsertion] = wire(array(ScramCredentialUpsertion))


@part
class AlterUserScramCredentialsResult:
    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 0), flexible_since=0)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = wire(INT32)
    results: list[AlterUserScramCredentialsResult] = wire(array(AlterUserScramCredentialsResult))
