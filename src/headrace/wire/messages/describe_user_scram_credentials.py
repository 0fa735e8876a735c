"""DescribeUserScramCredentials (50): which users have a password, for SCRAM. Null means all users."""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, STRING, array, message, part, wire


@part
class UserName:
    name: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = wire(array(UserName), nullable=0)


@part
class CredentialInfo:
    mechanism: int = wire(INT8)
    iterations: int = wire(INT32)


@part
class DescribeUserScramCredentialsResult:
    user: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    credential_infos: list[CredentialInfo] = wire(array(CredentialInfo))


@message(versions=(0, 0), flexible_since=0)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    results: list[DescribeUserScramCredentialsResult] = wire(array(DescribeUserScramCredentialsResult))
