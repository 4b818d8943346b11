"""What a sweep has measured, and the files in which that outlives the process."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from pathlib import Path

import msgspec

from shared.errors import ConfigError
from shared.latency.architectures import Architecture
from shared.protocol.codec import decode_record, encode_record
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.measurements import MeasuredShape

logger = logging.getLogger(__name__)

KV_GROWTH = 2  # a KV cache so many times as large is read in batches of which a sweep says enough
VERSION = 2  # 2: shapes tell the context of prefill chunks
SAFE_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_=.-]*")


class SweepRecord(msgspec.Struct, frozen=True):
    """What a sweep measured for one profile key, and the limits that its shapes reached."""

    version: int
    profile_key: str
    model: str
    engine: str
    device: str
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    measured_at_s: float
    measurements: list[MeasuredShape]
    architecture: Architecture | None = None  # None: of no dense decoder, or of a version that did not note it
    num_kv_tokens: int | None = None  # that the KV cache had room for; None: of a version that did not note it

    @classmethod
    def of(cls, info: ExecutorInfo, measurements: list[MeasuredShape], measured_at_s: float) -> SweepRecord:
        """What a sweep of this executor yields."""
        spec = info.spec
        sizes = info.largest_sizes
        limits = (sizes.max_num_batched_tokens, sizes.max_num_seqs, spec.max_model_len)
        ids = (info.profile_key, spec.model, spec.engine, spec.device)
        return cls(VERSION, *ids, *limits, measured_at_s, measurements, spec.architecture, info.num_kv_tokens)

    def covers(self, info: ExecutorInfo) -> bool:
        """False where the executor may run larger batches than were measured, or over far more KV, and where it has
        another model under the same key: as a rule a model's name is that of its folder."""
        sizes, spec = info.largest_sizes, info.spec
        is_same = self.model == spec.model and (self.architecture is None or self.architecture == spec.architecture)
        return (
            is_same
            and sizes.max_num_batched_tokens <= self.max_num_batched_tokens
            and sizes.max_num_seqs <= self.max_num_seqs
            and spec.max_model_len <= self.max_model_len
            and (self.num_kv_tokens is None or info.num_kv_tokens <= KV_GROWTH * self.num_kv_tokens)
        )

    def is_sound(self) -> bool:
        """False for what no sweep writes."""
        latencies = [latency for measured in self.measurements for latency in measured.latencies_ms]
        return self.version == VERSION and bool(latencies) and all(math.isfinite(x) and x > 0 for x in latencies)


class SweepFiles:
    """``<folder>/<profile_key>.json``. Blocking; every write replaces the whole file at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, profile_key: str) -> Path:
        """Raises ConfigError for a key that is no file name."""
        if not SAFE_KEY.fullmatch(profile_key):
            raise ConfigError(f"profile key {profile_key!r} must match {SAFE_KEY.pattern}")
        return self._folder / f"{profile_key}.json"

    def load(self, profile_key: str) -> SweepRecord | None:
        """None where there is none, or none that can be used; the log says which."""
        path = self.path(profile_key)
        try:
            record = decode_record(path.read_bytes(), SweepRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("cached sweep cannot be read, measuring anew", extra=_where(path, error))
            return None
        if record.profile_key != profile_key or not record.is_sound():
            logger.warning("cached sweep is not sound, measuring anew", extra={"path": str(path)})
            return None
        return record

    def store(self, record: SweepRecord) -> None:
        """A file that cannot be written costs a sweep at the next start, so it is logged and nothing more; one that a
        crash has cut short is not sound."""
        path = self.path(record.profile_key)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(encode_record(record))
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            logger.warning("sweep not cached", extra=_where(path, error))


def _where(path: Path, error: Exception) -> dict[str, str]:
    return {"path": str(path), "error": str(error)}
