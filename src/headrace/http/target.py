"""Parse a request target into its path, not decoded, and its decoded query. The last value of a repeated name
applies."""

from __future__ import annotations


def authority_of(target: str) -> str | None:
    """Return `host:8080` for `http://host:8080/path`. It replaces the header `Host` (RFC 9112, 3.2.2)."""
    _, mark, rest = target.partition("://") if not target.startswith("/") else ("", "", "")
    return rest[: _authority_end(rest)] if mark else None


def parse_target(target: str) -> tuple[str, dict[str, str]]:
    """Parse `/path?name=value` or `http://host/path?name=value`; `*` is a path."""
    if not target.startswith("/"):
        _, scheme_end, rest = target.partition("://")
        if scheme_end:
            target = rest[_authority_end(rest) :]
            if not target.startswith("/"):
                target = f"/{target}"
    if "#" in target:
        target = target[: target.index("#")]
    path, mark, query = target.partition("?")
    return path, _parse_query(query) if mark else {}


def _authority_end(rest: str) -> int:
    """Find the first of `/`, `?` and `#`. In `http://host?/livez` the slash is part of the query."""
    return min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))


def _parse_query(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    is_encoded = "%" in query or "+" in query
    for field in query.split("&"):
        if field:
            name, _, value = field.partition("=")
            found[_decode(name) if is_encoded else name] = _decode(value) if is_encoded else value
    return found


def _decode(text: str) -> str:
    from urllib.parse import unquote_plus  # imported on first use: keeps startup fast

    return unquote_plus(text)
