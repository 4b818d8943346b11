"""Files of OpenAI batches: input lines within the limits, and the usage in output lines."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from loadgen.client.sse import Usage
from loadgen.offline.bodies import OfflineMaker
from loadgen.workload.backlog import OfflinePrompt

MAX_FILE_BYTES = 190 << 20  # OpenAI takes 200 MB
MAX_FILE_LINES = 50_000


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


def output_usages(content: bytes) -> Iterator[Usage]:
    """The usage of each answer in a batch's output file."""
    for line in content.splitlines():
        body = (msgspec.json.decode(line).get("response") or {}).get("body") or {}
        if isinstance(body.get("usage"), dict):
            yield msgspec.convert(body["usage"], Usage)
