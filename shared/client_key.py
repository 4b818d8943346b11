"""The API key that a command sends to a server."""

from collections.abc import Mapping

VARIABLES = ("SLACKWATER_API_KEY", "OPENAI_API_KEY")  # the first that is set


def client_key(environ: Mapping[str, str]) -> str | None:
    """From the environment; None where there is none."""
    return next((key for name in VARIABLES if (key := environ.get(name, "").strip())), None)
