"""`slackwater chat`: one answer, or a conversation, streamed as it is generated."""

import contextlib
import sys
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console

from services.local.commands.server import ApiClient, Json, ServerOptions
from shared.errors import ApiError
from shared.settings.command_options import with_option_groups


@with_option_groups
def chat(
    *,
    message: Annotated[str | None, typer.Argument(help="Ask this and leave; without it, a conversation.")] = None,
    model: Annotated[str | None, typer.Option(help="By default the first that the server lists.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 512,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0 is greedy; 1 is the model's own spread.")
    ] = 0.0,
    server: ServerOptions,
) -> None:
    """Chat with the model; the answer is streamed. Ctrl-C stops an answer, Ctrl-D leaves."""
    with server.client() as client:
        body = {"model": model or default_model(client), "max_tokens": max_tokens, "temperature": temperature}
        conversation = Conversation(client, body, [{"role": "system", "content": system}] if system else [])
        if message is None:
            conversation.run()
        else:
            conversation.ask(message)


@dataclass(slots=True)
class Conversation:
    """The messages so far; ``body`` has what every request carries. Each answer goes to stdout piece by piece."""

    client: ApiClient
    body: Json
    messages: list[Json]

    def ask(self, message: str) -> None:
        """Stream the answer. KeyboardInterrupt stops it, keeps what has come, and is passed on. Raises ApiError."""
        self.messages.append({"role": "user", "content": message})
        answer = _Answer()
        events = self.client.stream("/v1/chat/completions", {**self.body, "messages": self.messages})
        try:
            with contextlib.closing(events):
                for event in events:
                    for choice in event.get("choices", ()):
                        answer.take(choice)
        finally:
            print(flush=True)
            self.messages.append({"role": "assistant", "content": answer.text})
        if note := answer.note(self.body["max_tokens"]):
            print(note, file=sys.stderr)

    def run(self) -> None:
        """Ask for messages until the end of input (Ctrl-D). On a terminal Ctrl-C stops an answer, or empties the line,
        and an error ends the answer alone."""
        interactive = sys.stdin.isatty()
        if interactive:
            import readline  # noqa: F401  # line editing for input()

            print(f"{self.body['model']}. Ctrl-C stops an answer, Ctrl-D leaves.", file=sys.stderr)
        while True:
            interrupted = ""  # the line
            try:
                message = input("> " if interactive else "").strip()
                interrupted = "(stopped)"
                if message:
                    self.ask(message)
            except EOFError:
                return
            except KeyboardInterrupt:
                if not interactive:
                    raise
                print(interrupted, file=sys.stderr)
            except ApiError as error:
                if not interactive:
                    raise
                del self.messages[-2:]
                print(f"error: {error}", file=sys.stderr)


@dataclass(slots=True)
class _Answer:
    """One answer as it comes: its text to stdout, and what the model thinks before it to stderr, on a terminal."""

    text: str = ""
    has_thought: bool = False
    is_cut: bool = False
    _console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, markup=False))

    def take(self, choice: Json) -> None:
        """A chunk's choice."""
        delta: Json = choice.get("delta") or {}
        self._think(delta.get("reasoning") or delta.get("reasoning_content") or "")
        piece = delta.get("content") or ""
        if piece and self.has_thought and not self.text:
            self._show("\n\n")
        self.text += piece
        sys.stdout.write(piece)
        sys.stdout.flush()
        self.is_cut = self.is_cut or choice.get("finish_reason") == "length"

    def note(self, max_tokens: int) -> str:
        """What the text does not tell."""
        only_thought = self.has_thought and not self.text
        if self.is_cut:
            when = " while the model was thinking" if only_thought else ""
            return f"(cut at {max_tokens} tokens{when}; --max-tokens allows more)"
        return "(the model thought, and did not answer)" if only_thought else ""

    def _think(self, piece: str) -> None:
        self.has_thought = self.has_thought or bool(piece)
        self._show(piece)

    def _show(self, piece: str) -> None:
        if self._console.is_terminal:
            self._console.print(piece, style="dim", end="", soft_wrap=True)


def default_model(client: ApiClient) -> str:
    """The first model that the server lists. Raises ApiError."""
    models = client.get("/v1/models").get("data") or []
    if not models:
        raise ApiError("the server lists no model")
    return str(models[0]["id"])
