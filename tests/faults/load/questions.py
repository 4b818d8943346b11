"""What clients ask. The right answer of each is what a stack says that nothing is done to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from services.executor.prepare_model import DEFAULT_MODEL

SUBJECTS = ("rivers", "bread", "the moon", "trains", "old maps", "bees", "glass", "rain", "islands", "clocks")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["bird", "fish", "tree"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "living", "strict": True, "schema": SCHEMA}}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Question:
    """``name``: how it is called in what the clients write down; ``body`` has no ``stream``."""

    name: str
    endpoint: str
    body: dict[str, Any] = field(hash=False)


def _text(number: int, subject: str, repeats: int, num_tokens: int, temperature: float) -> Question:
    prompt = f"Here is what I know about {subject}, in {num_tokens} words or so. " * repeats + "First of all,"
    body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": temperature, "seed": number}
    name = f"{'greedy' if temperature == 0 else 'sampled'} {number}"
    return Question(name, COMPLETIONS, {"model": DEFAULT_MODEL, "ignore_eos": True, **body})


def _chat(name: str, number: int, **fields: Any) -> Question:
    messages = [{"role": "user", "content": f"Tell me of number {number}."}]
    body = {"model": DEFAULT_MODEL, "messages": messages, "seed": number, "temperature": 0.7, **fields}
    return Question(f"{name} {number}", CHAT, body)


def texts(num_tokens: tuple[int, ...]) -> list[Question]:
    """Greedy and sampled ones, with short and long prompts, of these lengths in turns."""
    shapes = [(subject, repeats) for repeats in (1, 8) for subject in SUBJECTS]
    return [
        _text(number, *shape, num_tokens[number % len(num_tokens)], 0.0 if number % 2 else 0.8)
        for number, shape in enumerate(shapes)
    ]


def chats(num_tokens: int) -> list[Question]:
    return [_chat("chat", number, max_tokens=num_tokens, ignore_eos=True) for number in range(4)]


def schemas() -> list[Question]:
    return [_chat("schema", number, max_tokens=120, response_format=FORMAT) for number in range(4)]


def tools() -> list[Question]:
    return [_chat("tool", number, max_tokens=120, tools=[TOOL], tool_choice="required") for number in range(4)]


@dataclass(frozen=True)
class Questions:
    """``long``: for streams; ``short``: for lines of batches; the others for lines of chat's endpoint."""

    long: list[Question]
    short: list[Question]
    chats: list[Question]
    schemas: list[Question]
    tools: list[Question]
    right: dict[Question, str] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: str) -> Questions:
        """As the engine is fast; without tools where its model takes none."""
        if engine == "sim":
            return cls(texts((20, 60, 150, 300)), texts((4, 12)), chats(40), schemas(), tools())
        return cls(texts((12, 24)), texts((4, 8)), chats(12), [], [])

    @property
    def all(self) -> list[Question]:
        return list(dict.fromkeys((*self.long, *self.short, *self.chats, *self.schemas, *self.tools)))

    def streamed(self, rng: random.Random) -> Question:
        """One for a stream."""
        return rng.choice(self.chats if rng.random() < 0.2 else self.long)
