"""docker-compose.yml as ``docker compose`` reads it, as far as that file goes: what is not in it is not known here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
INTERPOLATION = re.compile(r"\$\{(\w+):-([^}]*)\}")
DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")
DEFAULT_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """``command``: as it is run in the container."""

    command: tuple[str, ...]
    interval_s: float
    timeout_s: float
    retries: int


@dataclass(frozen=True, slots=True)
class Build:
    dockerfile: str
    args: dict[str, str]


@dataclass(frozen=True, slots=True)
class Volume:
    """``source``: a volume's name, or a path of the project, which begins with a dot."""

    source: str
    target: str
    is_read_only: bool

    @property
    def is_named(self) -> bool:
        return not self.source.startswith(".")


@dataclass(frozen=True, slots=True)
class Service:
    """``entrypoint``, ``command`` and ``health``: None where they are the image's. ``after``: what others have to be
    before it starts, by their names. ``is_checked``: False where compose turns the image's health check off."""

    name: str
    image: str
    build: Build | None
    entrypoint: tuple[str, ...] | None
    command: tuple[str, ...] | None
    environment: dict[str, str]
    volumes: tuple[Volume, ...]
    health: Health | None
    is_checked: bool
    after: dict[str, str]
    profiles: tuple[str, ...]
    grace_s: float


def read_services(environ: Mapping[str, str]) -> dict[str, Service]:
    """By name, each after those that it waits for; variables are those of ``environ``."""
    given = interpolated(yaml.safe_load((ROOT / "docker-compose.yml").read_text()), environ)
    services = {name: _service(name, each) for name, each in given["services"].items()}
    order = TopologicalSorter({name: service.after for name, service in services.items()}).static_order()
    return {name: services[name] for name in order}


def interpolated(given: Any, environ: Mapping[str, str]) -> Any:
    """With ``${NAME:-default}`` in all strings as compose replaces it: an empty variable has the default too."""
    if isinstance(given, dict):
        return {key: interpolated(value, environ) for key, value in given.items()}
    if isinstance(given, list):
        return [interpolated(each, environ) for each in given]
    if isinstance(given, str):
        return INTERPOLATION.sub(lambda match: environ.get(match[1]) or match[2], given)
    return given


def _service(name: str, given: dict[str, Any]) -> Service:
    health = given.get("healthcheck", {})
    is_checked = not health.pop("disable", False)
    return Service(
        name,
        given["image"],
        _build(given["build"]) if "build" in given else None,
        _words(given.get("entrypoint")),
        _words(given.get("command")),
        {key: str(value) for key, value in given.get("environment", {}).items()},
        tuple(_volume(each) for each in given.get("volumes", ())),
        _health(health) if health else None,
        is_checked,
        _after(given.get("depends_on", {})),
        tuple(given.get("profiles", ())),
        seconds(given["stop_grace_period"]) if "stop_grace_period" in given else DEFAULT_GRACE_S,
    )


def _build(given: dict[str, Any]) -> Build:
    assert given["context"] == "."
    return Build(given["dockerfile"], {key: str(value) for key, value in given.get("args", {}).items()})


def _words(given: list[str] | None) -> tuple[str, ...] | None:
    assert given is None or isinstance(given, list), "a command in one string is split by compose"
    return None if given is None else tuple(given)


def _volume(given: str) -> Volume:
    source, target, *options = given.split(":")
    assert options in ([], ["ro"])
    return Volume(source, target, bool(options))


def _health(given: dict[str, Any]) -> Health:
    kind, *command = given["test"]
    assert kind == "CMD"
    return Health(tuple(command), seconds(given["interval"]), seconds(given["timeout"]), given["retries"])


def _after(given: dict[str, dict[str, str]] | Iterable[str]) -> dict[str, str]:
    if isinstance(given, dict):
        return {name: each["condition"] for name, each in given.items()}
    return dict.fromkeys(given, "service_started")


def seconds(given: str) -> float:
    """Of a duration such as 1m30s."""
    match = DURATION.fullmatch(given)
    assert match, given
    return 60.0 * int(match[1] or 0) + int(match[2] or 0)
