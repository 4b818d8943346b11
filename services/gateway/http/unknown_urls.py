"""URLs and methods that nothing answers: what there is instead."""

from collections.abc import Iterator

from fastapi import FastAPI, Request
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

VERSION = "v1"


def nothing_there(request: Request) -> str:
    """What its client is told. The URL that is set in clients ends with /v1, and many leave that out or write it
    twice."""
    method, path = request.method, request.url.path
    parts = [part for part in path.split("/") if part and part != VERSION]
    for near in ("/".join(["", VERSION, *parts]), "/".join(["", *parts])):
        found = routes_at(request.app, request.scope, near)
        if parts and near != path and any(match is Match.FULL for match, _ in found):
            return f"nothing is served at {method} {path}; {near} is: see to the client's base URL"
    return f"nothing is served at {method} {path}; GET /docs says what is"


def methods_there(request: Request) -> list[str]:
    """By which its path is served: HEAD is whatever GET is."""
    routes = [route for _, route in routes_at(request.app, request.scope, request.url.path)]
    found = {method for route in routes for method in getattr(route, "methods", ())}
    return sorted(found | {"HEAD"} if "GET" in found else found)


def routes_at(app: FastAPI, asked: Scope, path: str) -> Iterator[tuple[Match, BaseRoute]]:
    """The routes of a path, whatever the method. The application's own list may have a router in place of its routes,
    which says nothing of their methods."""
    scope = {**asked, "path": path}
    for route in app.state.routes:
        match, _ = route.matches(scope)
        if match is not Match.NONE:
            yield match, route
