"""/openapi.json: FastAPI knows routes and parameters, msgspec's structs know bodies and answers."""

import importlib.metadata
from operator import attrgetter
from typing import Any

from fastapi import FastAPI

from services.gateway.access.key_check import OPEN_PATHS
from services.gateway.http.operation import components

ABOUT = "OpenAI's API for completions, responses, files and batches, as Slackwater serves it."
KEY_SCHEME = "api_key"


class DescribedApp(FastAPI):
    """FastAPI whose document names our structs. ``keys_required``: whether clients need an API key."""

    def __init__(self, keys_required: bool) -> None:
        super().__init__(
            title="Slackwater",
            description=ABOUT,
            version=importlib.metadata.version("slackwater"),
            docs_url=None,
            redoc_url=None,
            generate_unique_id_function=attrgetter("name"),
        )
        self._keys_required = keys_required

    def openapi(self) -> dict[str, Any]:
        """Made when it is first asked for."""
        if self.openapi_schema is None:
            document = super().openapi()
            scheme = {"type": "http", "scheme": "bearer", "description": "A key of slackwater key create."}
            document["components"] = {"schemas": components(), "securitySchemes": {KEY_SCHEME: scheme}}
            document["security"] = [{KEY_SCHEME: []}] if self._keys_required else [{KEY_SCHEME: []}, {}]
            for path in OPEN_PATHS:
                document["paths"][path]["get"]["security"] = []
            self.openapi_schema = document
        return self.openapi_schema
