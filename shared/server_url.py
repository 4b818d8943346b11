"""The address of an OpenAI-compatible server, however its user writes it."""


def root_url(url: str) -> str:
    """Over plain HTTP where no scheme is named, and without the ``/v1`` that OpenAI's own clients are given."""
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
