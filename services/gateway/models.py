"""/v1/models: the one model that this stack serves."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from services.gateway.context import Context, context_of
from services.gateway.json_response import JsonResponse
from shared.openai.errors import RequestError

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    return JsonResponse({"object": "list", "data": [_model(context_of(request))]})


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> Response:
    context = context_of(request)
    if model_id != context.model.name:
        raise RequestError(f"the model {model_id!r} does not exist", "model", "model_not_found", 404)
    return JsonResponse(_model(context))


def _model(context: Context) -> dict[str, Any]:
    return {
        "id": context.model.name,
        "object": "model",
        "created": context.created_s,
        "owned_by": "slackwater",
        "max_model_len": context.registry.max_model_len(context.model.max_model_len),
    }
