"""The address of an OpenAI-compatible server, however its user writes it."""

import re

CREDENTIALS = re.compile(r"(?<=://)[^/]*@")


def root_url(url: str) -> str:
    """Over plain HTTP where no scheme is named, and without the ``/v1`` that OpenAI's own clients are given."""
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def without_credentials(url: str) -> str:
    """To be shown: what stands before the host, a user's name and password, is left out."""
    return CREDENTIALS.sub("", url)
