"""What a key may do, as options of the commands that make and change one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from services.local.commands.key.expiry import parse_expiry
from shared.openai.objects import is_well_formed
from shared.protocol.access.api_keys import PERMISSIONS

NEVER, ALL, NONE = "never", "all", "none"
LIMITS = (
    *("requests_per_minute", "tokens_per_minute", "tokens_per_day", "tokens_per_month"),
    *("max_stored_bytes", "max_open_batches", "max_queued_tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTermOptions:
    """None: not named."""

    weight: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1000.0,
            help="Its share against 1 of others: of batches, and under --online-order vtc online. A new key's is 1.",
        ),
    ] = None
    requests_per_minute: Annotated[int | None, typer.Option(min=0, help="At most so many; 0 is no limit.")] = None
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=0, help="Of prompts and answers, at most so many; 0 is no limit.")
    ] = None
    tokens_per_day: Annotated[
        int | None,
        typer.Option(min=0, help="A budget: of prompts and answers, batches too, in a day of UTC; 0 is none."),
    ] = None
    tokens_per_month: Annotated[
        int | None, typer.Option(min=0, help="A budget: the same in a month of UTC; 0 is none.")
    ] = None
    organization: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Its files, batches and stored responses are those of all keys of this name; or none."
        ),
    ] = None
    max_stored_bytes: Annotated[
        int | None, typer.Option(min=0, help="A quota: of its files, those that batches wrote too; 0 is none.")
    ] = None
    max_open_batches: Annotated[
        int | None, typer.Option(min=0, help="A quota: of its batches that have not ended; 0 is none.")
    ] = None
    max_queued_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="A quota: of prompts and longest answers in its batches, not done yet; 0 is none."),
    ] = None
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="When it ends: 30d or 12h from now on, 2027-01-31, 2027-01-31T18:00; UTC. Or never."
        ),
    ] = None
    models: Annotated[
        str | None, typer.Option(metavar="NAMES", help="It may ask for these only, separated by commas; or all.")
    ] = None
    endpoints: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"It may call these only, separated by commas: {', '.join(PERMISSIONS)}; or all. A new key's are all "
            "but admin.",
        ),
    ] = None

    def named(self, now_s: float) -> dict[str, Any]:
        """Fields of KeyTerms that were named. Raises typer.BadParameter."""
        named: dict[str, Any] = {
            name: getattr(self, name) or None for name in LIMITS if getattr(self, name) is not None
        }
        if self.weight is not None:
            named["weight"] = self.weight
        if self.organization is not None:
            named["organization"] = _organization(self.organization)
        if self.expires is not None:
            named["expires_at"] = None if self.expires == NEVER else parse_expiry(self.expires, now_s)
        if self.models is not None:
            named["models"] = _listed(self.models)
        if self.endpoints is not None:
            named["endpoints"] = _permissions(self.endpoints)
        return named


def _organization(text: str) -> str | None:
    if text == NONE:
        return None
    if not is_well_formed(text):
        message = f"an organization's name has 1 to 64 of A-Z, a-z, 0-9, _ and -; {text!r} is none"
        raise typer.BadParameter(message, param_hint="--organization")
    return text


def _listed(text: str) -> list[str] | None:
    """None for all."""
    if text.strip() == ALL:
        return None
    names = list(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not names:
        raise typer.BadParameter(f"name one at least, or {ALL}")
    return names


def _permissions(text: str) -> list[str] | None:
    names = _listed(text)
    if names is None:
        return None
    for unknown in (name for name in names if name not in PERMISSIONS):
        raise typer.BadParameter(f"{unknown!r} is none of {', '.join(PERMISSIONS)}", param_hint="--endpoints")
    return [permission for permission in PERMISSIONS if permission in names]
