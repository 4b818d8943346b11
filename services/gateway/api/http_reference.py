"""docs/http_api.md, made of /openapi.json: ``python -m services.gateway.api.http_reference > docs/http_api.md``."""

from collections.abc import Iterator

from services.gateway.api.app import make_routes
from services.gateway.api.reference import reference_of


def http_reference() -> Iterator[str]:
    """The page, in pieces that stand on lines of their own."""
    yield from reference_of(make_routes(keys_required=False).openapi())


if __name__ == "__main__":
    print("\n".join(http_reference()).rstrip())
