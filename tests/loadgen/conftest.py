"""A server under the test's control, and a trace for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from loadgen.workload.prompts import generated_text
from tests.loadgen.openai_server import OpenAIServer, serve

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    controlled = OpenAIServer()
    running, task = serve(controlled)
    yield controlled
    controlled.gate.set()
    running.should_exit = True
    await task


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """20 requests, one every 20 ms, of 10 to 29 prompt and 4 output tokens, in BurstGPT's form."""
    path = tmp_path / "trace.csv"
    rows = [f"{index * 0.02},ChatGPT,{10 + index},4,{14 + index},Conversation log" for index in range(20)]
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """1,000 prompts of two words."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "prompt {index}"}}\n' for index in range(1000)))
    return path


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A folder with a small byte-level tokenizer, trained here."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([generated_text(2000)], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def shared_data(name: str) -> Path:
    """A file of the shared data set; skips the test where it is not there."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return path
