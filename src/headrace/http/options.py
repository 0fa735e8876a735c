"""OPTIONS: which methods a path has. An application need not know of it: its refusal names them."""

from __future__ import annotations

from headrace.http.message import Request, Response
from headrace.http.refusals import EVERY_METHOD


def options_response(request: Request, response: Response) -> Response:
    """204 with `allow`, made of what the application answered; anything but 405 is its own answer."""
    if request.path == "*":
        return Response(204, headers=[("allow", EVERY_METHOD)])
    if response.status != 405:
        return response
    methods = {method.strip() for name, value in response.headers if name == "allow" for method in value.split(",")}
    if "GET" in methods:
        methods.add("HEAD")
    return Response(204, headers=[("allow", ", ".join(sorted(methods | {"OPTIONS"})))])
