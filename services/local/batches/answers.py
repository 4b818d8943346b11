"""The answers of batches that have ended, found by their lines' ids, whatever order their files have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from services.local.batches.batch import errors_of
from services.local.batches.spool import temporary_file
from services.local.commands.server import ApiClient, Json
from shared.errors import ApiError


class _Line(msgspec.Struct):
    """Of an output or an error file."""

    custom_id: str
    id: str = ""

    @property
    def number(self) -> int:
        """Of the request in the input; 0 where the server's ids do not tell."""
        number = self.id.rpartition("_")[2]
        return int(number) if number.isdecimal() else 0


_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one line: ``error`` where it has no answer."""

    answer: str | None = None
    finish_reason: str | None = None
    error: str | None = None

    def columns(self) -> dict[str, str | None]:
        """In the order of ANSWER_COLUMNS."""
        return {"answer": self.answer, "finish_reason": self.finish_reason, "error": self.error}


ANSWER_COLUMNS = tuple(Answer().columns())


@dataclass(frozen=True, slots=True)
class _Place:
    file: BinaryIO
    offset: int
    size: int
    is_done: bool
    number: int


class BatchAnswers:
    """Of one batch and of those that ran lines of it again: of each line the answer, where one of them has it, else its
    newest error. The files are on the disk; memory grows with the number of lines alone."""

    def __init__(self, batch: Json) -> None:
        self._batch = batch
        self._places: dict[str, _Place] = {}
        self._files: list[BinaryIO] = []

    @classmethod
    @contextmanager
    def fetched(cls, client: ApiClient, chain: list[Json]) -> Iterator[BatchAnswers]:
        """``chain``: the batch, then its retries. Raises ApiError."""
        answers = cls(chain[0])
        try:
            for batch in chain:
                for field, is_done in (("error_file_id", False), ("output_file_id", True)):
                    if batch.get(field):
                        answers._fetch(client, batch[field], is_done)
            yield answers
        finally:
            for file in answers._files:
                file.close()

    def __contains__(self, custom_id: str) -> bool:
        return custom_id in self._places

    def is_done(self, custom_id: str) -> bool:
        """It has an answer."""
        place = self._places.get(custom_id)
        return place is not None and place.is_done

    def in_order(self) -> list[str]:
        """The ids of all lines that are in some file, in the order of the input."""
        places = self._places
        return sorted(places, key=lambda custom_id: (places[custom_id].number, custom_id))

    def raw(self, custom_id: str) -> bytes:
        """Its line, as the server has written it."""
        place = self._places[custom_id]
        place.file.seek(place.offset)
        return place.file.read(place.size)

    def get(self, custom_id: str) -> Answer:
        """Of a line that is in no file, why the batch has failed."""
        if custom_id in self._places:
            return answer_in(msgspec.json.decode(self.raw(custom_id)))
        errors = errors_of(self._batch)
        why = errors[0]["message"] if errors else "it is in no file of the batch"
        return Answer(error=f"the batch is {self._batch['status']}: {why}")

    def _fetch(self, client: ApiClient, file_id: str, is_done: bool) -> None:
        file = temporary_file()
        self._files.append(file)
        client.download_to(file_id, file)
        file.seek(0)
        offset = 0
        for data in file:
            line = _decoder.decode(data)
            before = self._places.get(line.custom_id)
            if before is None or is_done or not before.is_done:
                number = before.number if before else line.number  # of the first batch's input
                self._places[line.custom_id] = _Place(file, offset, len(data), is_done, number)
            offset += len(data)


def answer_in(line: Json) -> Answer:
    """Of a line of an output or an error file. Several choices are a JSON list, and so are their reasons where they
    differ."""
    response = line.get("response") or {}
    body: Json = response.get("body") or {}
    error = line.get("error") or body.get("error")
    if error:
        return Answer(error=str(error.get("message", error)) if isinstance(error, dict) else str(error))
    if "choices" in body:
        choices = body["choices"]
        texts, reasons = [_text_of(choice) for choice in choices], [choice.get("finish_reason") for choice in choices]
        is_one = len(set(reasons)) < 2
        finish_reason = next(iter(reasons), None) if is_one else msgspec.json.encode(reasons).decode()
        return Answer(texts[0] if len(texts) == 1 else msgspec.json.encode(texts).decode(), finish_reason)
    if body.get("object") == "list":
        return Answer(_of_embeddings(body))
    if body.get("object") == "response":
        return _of_response(body)
    return Answer(error="the answer is of a kind that is not known here")


def _text_of(choice: Json) -> str:
    if "message" not in choice:
        return str(choice.get("text") or "")
    return _with_calls(choice["message"].get("content"), choice["message"].get("tool_calls"))


def _with_calls(content: str | None, calls: list[Json] | None) -> str:
    """Where tools are called, the JSON of the calls; with a text beside them, of an object that has both."""
    if not calls:
        return str(content or "")
    return msgspec.json.encode({"content": content, "tool_calls": calls} if content else calls).decode()


def _of_embeddings(body: Json) -> str:
    """The numbers as JSON, or the base64 of them; a line has one."""
    (embedding,) = (each["embedding"] for each in body["data"])
    return embedding if isinstance(embedding, str) else msgspec.json.encode(embedding).decode()


def _of_response(body: Json) -> Answer:
    """As of a chat: what the model thought is no part of it, and calls have a chat's form."""
    items: list[Json] = body.get("output") or []
    said = [part for item in items if item.get("type") == "message" for part in item.get("content") or ()]
    calls = [_chat_call(item) for item in items if item.get("type") == "function_call"]
    whole = "tool_calls" if calls else "stop"
    text = "".join(part.get("text", "") for part in said)
    return Answer(_with_calls(text, calls), "length" if body.get("status") == "incomplete" else whole)


def _chat_call(item: Json) -> Json:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def input_lines(client: ApiClient, batch: Json) -> Iterator[tuple[str, bytes]]:
    """Each request of the batch with its custom_id, in the order of its input file. Raises ApiError."""
    with temporary_file() as file:
        try:
            client.download_to(batch["input_file_id"], file)
        except ApiError as error:
            raise ApiError(f"the input of batch {batch['id']} is not there any more: {error}") from error
        file.seek(0)
        for data in file:
            if data.strip():
                yield _decoder.decode(data.removeprefix(b"\xef\xbb\xbf")).custom_id, data.rstrip(b"\n") + b"\n"
