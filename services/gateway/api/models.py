"""/v1/models: the one model that this stack serves."""

from fastapi import APIRouter, Request, Response

from services.gateway.api.context import Context, context_of
from services.gateway.http.operation import JsonResponse, answers, json_of
from shared.openai.objects import Model, ModelList

router = APIRouter(tags=["models"])


@router.get("/v1/models", **answers(json_of(ModelList)))
async def list_models(request: Request) -> Response:
    """The model that this stack serves."""
    return JsonResponse(ModelList([_model(context_of(request))]))


@router.get("/v1/models/{model_id:path}", **answers(json_of(Model)))
async def get_model(request: Request, model_id: str) -> Response:
    """One model, by its name, which may have slashes in it."""
    context = context_of(request)
    context.model.check(model_id)
    return JsonResponse(_model(context))


def _model(context: Context) -> Model:
    max_model_len = context.registry.max_model_len(context.model.max_model_len)
    return Model(context.model.name, context.created_s, max_model_len)
