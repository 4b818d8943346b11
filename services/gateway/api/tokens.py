"""/tokenize and /detokenize, as vLLM's server has them."""

from fastapi import APIRouter, Request, Response

from services.gateway.api.intake import read_body, take_request
from services.gateway.http.operation import JsonResponse, answers, json_of
from shared.openai.tokenization import (
    DetokenizeBody,
    DetokenizedText,
    TokenizeBody,
    TokenizedText,
    detokenized,
    tokenized,
)

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", **answers(json_of(TokenizedText), body=json_of(TokenizeBody)))
async def tokenize(request: Request) -> Response:
    """The tokens of a text, or of the prompt that the model's chat template makes of a conversation."""
    take_request(request)
    return JsonResponse(await read_body(request, tokenized))


@router.post("/detokenize", **answers(json_of(DetokenizedText), body=json_of(DetokenizeBody)))
async def detokenize(request: Request) -> Response:
    """The text of tokens."""
    take_request(request)
    return JsonResponse(await read_body(request, detokenized))
