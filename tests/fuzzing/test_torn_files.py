"""What processes keep for themselves, torn or rubbish: as good as absent, or an error in words."""

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
from shared.protocol.measurements import MeasuredShape
from shared.scheduling.orders.offline.density.lengths import OutputLengths
from tests.fuzzing.files import bad_files
from tests.shared.replica.factories import make_info

COUNT = 100


def test_a_torn_sweep_is_measured_anew(tmp_path: Path) -> None:
    files, info = SweepFiles(tmp_path), make_info()
    record = SweepRecord.of(info, [MeasuredShape(BatchFeatures(8, 1), [1.0, 2.0])], 5.0)
    files.store(record)
    assert files.load(info.profile_key) == record
    for content in bad_files(encode_record(record), Random(1), COUNT, is_json=True):
        files.path(info.profile_key).write_bytes(content)
        loaded = files.load(info.profile_key)
        assert loaded is None or loaded.is_sound()


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
    assert GgufFile.read(path).fields["tokenizer.ggml.tokens"] == ["a", "b", "<|endoftext|>"]
    for content in bad_files(good, Random(1), COUNT):
        path.write_bytes(content)
        try:
            GgufFile.read(path)
        except ModelError as error:
            assert str(path) in str(error)
    path.write_bytes(good)
    with pytest.raises(ModelError, match="cannot"):  # it has no merges and no weights
        convert(path, tmp_path, lambda _: None)


def test_lengths_that_were_learnt_are_whole_or_refused() -> None:
    lengths = OutputLengths(16)
    lengths.count(lengths.begin(b""), 5, True)
    good = lengths.remember()
    for content in bad_files(good, Random(1), COUNT):
        other = OutputLengths(16)
        try:
            other.recall(content)
        except ValueError:
            continue
        other.remember()
