"""``slackwater version``."""

from importlib import metadata

from services.local.commands.parameters import JsonOption
from shared.json_text import json_text


def version(as_json: JsonOption = False) -> None:
    """Show the version."""
    number = metadata.version("slackwater")
    print(json_text({"version": number}) if as_json else f"slackwater {number}")
