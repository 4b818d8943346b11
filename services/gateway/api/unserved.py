"""OpenAI's endpoints that this server does not have: known by name, refused with what it has instead."""

from fastapi import APIRouter, Request, Response

from shared.openai.errors import RequestError

SERVED = (
    *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses", "POST /v1/embeddings"),
    *("GET /v1/models", "/v1/files", "/v1/batches", "GET /v1/organization/usage/completions"),
)

# The path below /v1 -> why there is nothing behind it.
UNSERVED = {
    "moderations": "the model generates text and does not classify it",
    "images": "the model generates text and no images",
    "audio": "the model generates text and no speech",
    "videos": "the model generates text and no videos",
    "realtime": "there is no speech, and text is streamed over HTTP",
    "fine_tuning": "models are served, not trained",
    "fine-tunes": "models are served, not trained",
    "edits": "OpenAI has withdrawn it; ask for the edit in a chat completion",
    "uploads": "a file is uploaded in one request",
    "assistants": "conversations are not kept; each request brings its own",
    "threads": "conversations are not kept; each request brings its own",
    "conversations": "conversations are not kept; each request brings its own",
    "vector_stores": "files are kept for batches and not searched",
    "containers": "no code is run here",
    "evals": "evaluations are run as batches",
    "skills": "no code is run here",
    "chatkit": "conversations are not kept; each request brings its own",
    "responses/compact": "send the part of the conversation that is to be kept as input",
    "organization": "of it there is usage/completions; API keys are managed with slackwater key",
}

router = APIRouter()


async def refuse(request: Request) -> Response:
    """404: nothing that a client changes in the request would help."""
    below = request.url.path.removeprefix("/v1/")
    why = next(why for name, why in UNSERVED.items() if f"{below}/".startswith(f"{name}/"))
    what = f"{request.method} {request.url.path} is not served here: {why}"
    raise RequestError(f"{what}; served are {', '.join(SERVED)}", None, "unsupported_endpoint", 404)


for name in UNSERVED:
    for path in (f"/v1/{name}", f"/v1/{name}/{{rest:path}}"):
        router.add_api_route(path, refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
