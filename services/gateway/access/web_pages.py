"""Web pages in a user's browser, which reaches what only this machine can: who needs no key is not one of them."""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from services.gateway.settings import GatewaySettings
from shared.settings.setting import listed

ANY = "*"


class WebPageCheck:
    """Refuses calls under names that are not the gateway's, which a page gets by pointing its own name here (DNS
    rebinding), and those of pages from elsewhere. An address is no such name: nobody else can point it here."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._hosts: Collection[str] = {"localhost", settings.host.lower(), *listed(settings.allowed_hosts.lower())}
        self._origins: Collection[str] = {*listed(settings.cors_origins)}

    def refusal(self, headers: Headers) -> tuple[str, str] | None:
        """The reason, for the metrics, and what to do about it; None where there is none. Only a browser is asked:
        whatever else can connect sends what it wants."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host and not self._is_ours(host):
            message = f"this gateway is not known as {host!r}; name it in --allowed-hosts, or send an API key"
            return "host", message
        if origin is None or origin in self._origins or ANY in self._origins or _host_of(origin) == host:
            return None
        return "origin", f"web pages of {origin!r} may not call this gateway; name it in --cors-origins"

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        return ANY in self._hosts or name in self._hosts or name.endswith(".localhost") or _is_address(name)


def _host_of(origin: str) -> str | None:
    """None where it is no origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
