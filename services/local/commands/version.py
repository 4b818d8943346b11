"""``slackwater version``."""

from services.local.commands.parameters import JsonOption
from shared.json_text import json_text
from shared.version import version as slackwater_version


def version(as_json: JsonOption = False) -> None:
    """Show the version."""
    number = slackwater_version()
    print(json_text({"version": number}) if as_json else f"slackwater {number}")
