"""OPTIONS: list the methods of a path, derived from the application's 405 response."""

from __future__ import annotations

from headrace.http.message import Request, Response
from headrace.http.refusals import EVERY_METHOD


def options_response(request: Request, response: Response) -> Response:
    """Convert a 405 response of the application to 204 with `allow`; other responses are returned unchanged."""
    if request.path == "*":
        return Response(204, headers=[("allow", EVERY_METHOD)])
    if response.status != 405:
        return response
    methods = {method.strip() for name, value in response.headers if name == "allow" for method in value.split(",")}
    if "GET" in methods:
        methods.add("HEAD")
    return Response(204, headers=[("allow", ", ".join(sorted(methods | {"OPTIONS"})))])
