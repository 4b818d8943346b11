"""The offline side of a run: its requests' bodies, and files of them for batches."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from loadgen.client.abilities import CHAT, RequestMaker
from loadgen.client.openai_client import error_message
from loadgen.client.sse import Usage
from loadgen.errors import ServerError
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import load_tokenizer
from loadgen.workload.scaling import fit_context, scale_lengths

MAX_FILE_BYTES = 190 << 20  # OpenAI takes 200 MB
MAX_FILE_LINES = 50_000

Tell = Callable[[int, int], None]  # how many of how many requests have ended


@dataclass(frozen=True, slots=True)
class OfflineMaker:
    """Turns a backlog's prompts into request bodies. ``mark``: each prompt begins with it, so that they share prefixes
    among each other as before, and none with those of another phase. ``extra``: further fields of each body."""

    maker: RequestMaker
    mark: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def endpoint(self, prompt: OfflinePrompt) -> str:
        return prompt.endpoint or (CHAT if prompt.messages else self.maker.abilities.endpoint)

    def bodies(self, prompts: Sequence[OfflinePrompt]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Endpoint and body of each prompt, in order, made when asked for."""
        for index, prompt in enumerate(prompts):
            yield self.endpoint(prompt), {**self.body(prompt, index), **self.extra}

    def body(self, prompt: OfflinePrompt, index: int) -> dict[str, Any]:
        """The body as the server takes it. A file's own bodies keep all but the model, which is the served one."""
        if prompt.body is not None:
            return self._marked_body(prompt.body) | {"model": self.maker.model, "stream": False}
        if prompt.messages is not None:
            return {
                "model": self.maker.model,
                "messages": self._marked_messages(prompt.messages),
                "max_tokens": prompt.max_tokens,
                "temperature": 0,
            }
        if prompt.num_prompt_tokens is not None:
            made = self.maker.prompts.prompt(prompt.shape, index)
            return self.maker.body(made, prompt.max_tokens, self.maker.abilities.exact_output)
        return self.maker.body(self.mark + (prompt.text or ""), prompt.max_tokens, ignore_eos=False)

    def inputs_per_output(self, prompts: Sequence[OfflinePrompt]) -> float | None:
        """Prompt tokens for each output token, over all of a backlog; None where lengths are not known before."""
        lengths = [(prompt.num_prompt_tokens, prompt.max_tokens) for prompt in prompts if prompt.num_prompt_tokens]
        if len(lengths) < len(prompts) or not self.maker.abilities.exact_output:
            return None
        return per_output(sum(inputs for inputs, _ in lengths), sum(outputs for _, outputs in lengths))

    def _marked_body(self, body: dict[str, Any]) -> dict[str, Any]:
        if isinstance(body.get("messages"), list):
            return body | {"messages": self._marked_messages(tuple(body["messages"]))}
        return body | {"prompt": self.mark + body["prompt"]} if isinstance(body.get("prompt"), str) else body

    def _marked_messages(self, messages: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        if not self.mark or not messages or not isinstance(messages[0].get("content"), str):
            return list(messages)
        return [messages[0] | {"content": self.mark + messages[0]["content"]}, *messages[1:]]


def per_output(input_tokens: int | None, output_tokens: int | None) -> float | None:
    """Prompt tokens for each output token; None where one is not known, or nothing came."""
    return None if input_tokens is None or not output_tokens else input_tokens / output_tokens


def fit_backlog(
    prompts: Sequence[OfflinePrompt], length_scale: float, max_context: int | None, model_path: Path | None
) -> list[OfflinePrompt]:
    """Lengths scaled, and prompts cut to the context: lengths always, texts where a tokenizer can measure them."""
    tokenizer = None if model_path is None or max_context is None else load_tokenizer(model_path)

    def fit(prompt: OfflinePrompt) -> OfflinePrompt:
        if prompt.num_prompt_tokens is not None:
            wanted = scale_lengths(prompt.num_prompt_tokens, prompt.max_tokens, length_scale)
            num_prompt_tokens, max_tokens = fit_context(*wanted, max_context)
            block_tokens = max(1, round(prompt.block_tokens * length_scale))
            lengths = replace(prompt, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens)
            return replace(lengths, block_tokens=block_tokens)
        if tokenizer is None or max_context is None or prompt.text is None:
            return prompt
        ids = tokenizer.encode(prompt.text).ids
        num_prompt_tokens, max_tokens = fit_context(len(ids), prompt.max_tokens, max_context)
        text = prompt.text if num_prompt_tokens == len(ids) else tokenizer.decode(ids[:num_prompt_tokens])
        return replace(prompt, text=text, max_tokens=max_tokens)

    return [fit(prompt) for prompt in prompts]


def batch_lines(maker: OfflineMaker, prompts: Sequence[OfflinePrompt]) -> Iterator[bytes]:
    """The lines of a batch input file."""
    for number, (endpoint, body) in enumerate(maker.bodies(prompts), start=1):
        line = {"custom_id": f"replay-{number}", "method": "POST", "url": endpoint, "body": body}
        yield msgspec.json.encode(line) + b"\n"


def write_files(
    lines: Iterable[bytes], folder: Path, max_bytes: int = MAX_FILE_BYTES, max_lines: int = MAX_FILE_LINES
) -> list[Path]:
    """The lines in files within the limits."""
    paths: list[Path] = []
    size = count = 0
    with contextlib.ExitStack() as files:
        for line in lines:
            if not paths or size + len(line) > max_bytes or count == max_lines:
                files.close()
                paths.append(folder / f"replay-{len(paths) + 1}.jsonl")
                file = files.enter_context(paths[-1].open("wb"))
                size = count = 0
            file.write(line)
            size, count = size + len(line), count + 1
    return paths


class _Response(msgspec.Struct, frozen=True):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"null")


class _ErrorLine(msgspec.Struct, frozen=True):
    response: _Response | None = None


def output_failures(content: bytes) -> Iterator[str]:
    """What each line of a batch's error file failed of; those that did not run have not failed. Raises ServerError."""
    try:
        for line in content.splitlines():
            response = msgspec.json.decode(line, type=_ErrorLine).response
            if response is not None:
                yield f"{response.status_code}: {error_message(bytes(response.body))}"
    except msgspec.DecodeError as error:
        raise ServerError(f"the batch's error file is not OpenAI's: {error}") from error


class _Answer(msgspec.Struct, frozen=True):
    usage: Usage | None = None


class _Answered(msgspec.Struct, frozen=True):
    body: _Answer | None = None


class _AnswerLine(msgspec.Struct, frozen=True):
    response: _Answered | None = None


def output_usages(content: bytes) -> Iterator[Usage]:
    """The usage of each answer in a batch's output file. Raises ServerError."""
    try:
        for line in content.splitlines():
            response = msgspec.json.decode(line, type=_AnswerLine).response
            if response is not None and response.body is not None and response.body.usage is not None:
                yield response.body.usage
    except msgspec.DecodeError as error:
        raise ServerError(f"the batch's output file is not OpenAI's: {error}") from error
