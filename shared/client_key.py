"""The API key that a command sends to a server."""

from collections.abc import Mapping

from shared.errors import ConfigError

VARIABLES = ("SLACKWATER_API_KEY", "OPENAI_API_KEY")  # the first that is set


def client_key(environ: Mapping[str, str]) -> str | None:
    """From the environment; None where there is none. Raises ConfigError for what no HTTP header can carry."""
    for name in VARIABLES:
        if key := environ.get(name, "").strip():
            if not (key.isascii() and key.isprintable()):
                raise ConfigError(f"{name} has a line break, or a character that is not ASCII: it is no API key")
            return key
    return None
