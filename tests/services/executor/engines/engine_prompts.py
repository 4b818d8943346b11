"""Prompts that every engine is tried with: chats, scripts, code, blanks; short and long, some that begin alike."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
from tokenizers import Tokenizer

from shared.openai.grammars import JsonSchema, ResponseFormat, grammar_of
from shared.protocol.sampling import SamplingParams
from shared.text.tokenizer import Tokenizer as ServingTokenizer
from tests.services.executor.engines.engine_driver import Request

MAX_TOKENS = 24
PENALTIES: dict[str, Any] = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.3,
    "min_p": 0.02,
    "logit_bias": ((28, 3.0), (30, -100.0)),
}
LIMITS: dict[str, Any] = {  # common beginnings of answers, and an end that would come early
    "bad_words": ((504,), (1808, 253), (198,), (28,)),
    "min_tokens": 9,
}

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "naïve 😀"]}, "minItems": 1, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/town"}]},
    },
    "required": ["name", "age", "likes", "home"],
    "additionalProperties": False,
    "$defs": {
        "town": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["zip"],
            "additionalProperties": False,
        }
    },
}

CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
QUESTIONS = [
    "What is the capital of France?",
    "List three primary colours.",
    "Explain what a hash table is.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "What is 12 times 12?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "Name a mammal that lays eggs.",
    "Summarize: " + "The committee met on Tuesday to discuss the budget. " * 12,
    "What comes after Wednesday?",
]
TEXTS = [
    "Once upon a time",
    "A",
    "def fibonacci(n):\n    ",
    "import os\nimport sys\n\n",
    "1, 2, 3, 4, 5,",
    "The year 1984 was",
    "The chemical formula of water is",
    "Les enfants jouent dans",
    "日本の首都は",
    "Привет, как",
    '{"name": "Alice", "age": ',
    "SELECT * FROM users WHERE",
    "\n\n\n",
    "   leading spaces",
    "Once upon a time, in a land far away, there lived",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "Call me Ishmael. Some years ago, never mind how long precisely, " * 15,
    "In 2023, the company reported revenues of $4.5 billion, up 12% from",
    "# Introduction\n\nThis document describes",
    "🙂 emoji and text",
]


def encoded_prompts(model_path: Path) -> list[list[int]]:
    """In the tokens of a model: the chats first."""
    tokenizer = Tokenizer.from_file(str(model_path / "tokenizer.json"))
    encoded: list[list[int]] = [tokenizer.encode(text).ids for text in [*map(CHAT.format, QUESTIONS), *TEXTS]]
    return encoded


def person_requests(model_path: Path, count: int) -> list[Request]:
    """Chats whose answers have to keep to the schema, hot, under different seeds."""
    tokenizer = ServingTokenizer.from_folder(model_path)
    asked = ResponseFormat("json_schema", JsonSchema("person", PERSON))
    grammar = grammar_of(asked, tokenizer)
    prompt = tokenizer.encode(CHAT.format("Invent a person."))
    return [Request(f"j{n}", prompt, SamplingParams(150, 1.0, seed=n, grammar=grammar)) for n in range(count)]


def check_persons(model_path: Path, outputs: Mapping[str, list[int]], count: int) -> None:
    """Of ``person_requests``: each is whole, and keeps to the schema."""
    tokenizer = ServingTokenizer.from_folder(model_path)
    texts = [tokenizer.decode(outputs[f"j{n}"]) for n in range(count)]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(texts)) == count


def requests_of(prompts: list[list[int]], **sampling: Any) -> list[Request]:
    return [
        Request(f"r{i}", prompt, SamplingParams(**{"max_tokens": MAX_TOKENS, "temperature": 0.0, "seed": i} | sampling))
        for i, prompt in enumerate(prompts)
    ]
