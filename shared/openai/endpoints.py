"""What the lines of a batch may ask for."""

from shared.openai.completions.requests import ENDPOINTS
from shared.openai.embeddings.requests import EMBEDDINGS
from shared.openai.responses.requests import RESPONSES

BATCH_ENDPOINTS = (*ENDPOINTS, RESPONSES, EMBEDDINGS)
