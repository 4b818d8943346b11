"""What processes keep for themselves, torn or rubbish: as good as absent, or an error in words."""

import math
import re
from pathlib import Path
from random import Random

import pytest
from gguf import GGUFWriter

from services.executor.gguf_file import GgufFile
from services.executor.gguf_model import convert
from services.profiler.sweep.sweep_record import SweepFiles, SweepRecord
from shared.errors import ModelError
from shared.latency.features import BatchFeatures
from shared.protocol.codec import encode_record
from shared.protocol.profiling.measurements import MeasuredShape
from shared.scheduling.orders.offline.density.lengths import OutputLengths
from tests.fuzzing.files import RUBBISH, bad_files
from tests.shared.replica.factories import make_info

COUNT = 100


def test_a_torn_sweep_is_measured_anew(tmp_path: Path) -> None:
    files, info = SweepFiles(tmp_path), make_info()
    record = SweepRecord.of(info, [MeasuredShape(BatchFeatures(8, 1), [1.0, 2.0])], 5.0)
    files.store(record)
    assert files.load(info.profile_key) == record
    good, num_loaded = encode_record(record), 0
    for content in bad_files(good, Random(1), COUNT, is_json=True):
        files.path(info.profile_key).write_bytes(content)
        loaded = files.load(info.profile_key)
        if is_torn_off(content, good):
            assert loaded is None
        elif loaded is not None:
            num_loaded += 1
            assert (loaded.version, loaded.profile_key) == (record.version, info.profile_key)
            assert all(count >= 0 for measured in loaded.measurements for count in measured.shape.sums)
            latencies_ms = [latency_ms for measured in loaded.measurements for latency_ms in measured.latencies_ms]
            assert latencies_ms and all(0 < latency_ms < math.inf for latency_ms in latencies_ms)
    assert num_loaded


def test_a_torn_gguf_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "<|endoftext|>"])
    writer.add_token_types([1, 1, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    good = path.read_bytes()
    whole = GgufFile.read(path)
    assert whole.fields["tokenizer.ggml.tokens"] == ["a", "b", "<|endoftext|>"]
    for content in bad_files(good, Random(1), COUNT):
        path.write_bytes(content)
        if is_torn_off(content, good):
            with pytest.raises(ModelError, match=re.escape(str(path))):
                GgufFile.read(path)
            continue
        try:
            read = GgufFile.read(path)
        except ModelError as error:
            assert str(path) in str(error)
        else:
            assert not read.tensors and read.rope_factors is None
            assert read.fields == whole.fields or not content.startswith(good)
    path.write_bytes(good)
    with pytest.raises(ModelError, match="cannot"):  # it has no merges and no weights
        convert(path, tmp_path, lambda _: None)


def test_lengths_that_were_learnt_are_whole_or_refused() -> None:
    lengths = OutputLengths(16)
    lengths.count(lengths.begin(b""), 5, True)
    good = lengths.remember()
    num_taken = 0
    for content in bad_files(good, Random(1), COUNT):
        other, another = OutputLengths(16), OutputLengths(16)
        try:
            other.recall(content)
        except ValueError:
            assert other.remember() == b""
            continue
        num_taken += 1
        assert not is_torn_off(content, good)
        another.recall(other.remember())
        assert another.remember() == other.remember() != b""
    assert num_taken


def is_torn_off(content: bytes, good: bytes) -> bool:
    """It lacks the end, or is nothing of the kind."""
    return content in RUBBISH or (len(content) < len(good) and good.startswith(content))
