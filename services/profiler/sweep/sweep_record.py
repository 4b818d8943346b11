"""A measured profile, and the files in which profiles outlive the process."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import tempfile
from pathlib import Path

import msgspec

from shared.errors import ConfigError
from shared.protocol.codec import decode_record, encode_record
from shared.protocol.messages import ExecutorInfo, MeasuredShape

logger = logging.getLogger(__name__)

VERSION = 2  # 2: shapes tell the context of prefill chunks
SAFE_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_=.-]*")


class Profile(msgspec.Struct, frozen=True):
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

    def covers(self, info: ExecutorInfo) -> bool:
        """False where the executor may run larger batches than were measured."""
        return (
            info.max_num_batched_tokens <= self.max_num_batched_tokens
            and info.max_num_seqs <= self.max_num_seqs
            and info.max_model_len <= self.max_model_len
        )

    def is_sound(self) -> bool:
        """False for what no sweep writes."""
        latencies = [latency for measured in self.measurements for latency in measured.latencies_ms]
        return self.version == VERSION and bool(latencies) and all(math.isfinite(x) and x > 0 for x in latencies)


def profile_of(info: ExecutorInfo, measurements: list[MeasuredShape], measured_at_s: float) -> Profile:
    """The profile that a sweep of this executor yields."""
    return Profile(
        version=VERSION,
        profile_key=info.profile_key,
        model=info.model,
        engine=info.engine,
        device=info.device,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_num_seqs=info.max_num_seqs,
        max_model_len=info.max_model_len,
        measured_at_s=measured_at_s,
        measurements=measurements,
    )


class ProfileFiles:
    """``<folder>/<profile_key>.json``. Blocking; every write replaces the whole file at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, profile_key: str) -> Path:
        """Raises ConfigError for a key that is no file name."""
        if not SAFE_KEY.fullmatch(profile_key):
            raise ConfigError(f"profile key {profile_key!r} must match {SAFE_KEY.pattern}")
        return self._folder / f"{profile_key}.json"

    def load(self, profile_key: str) -> Profile | None:
        """None where there is none, or none that can be used; the log says which."""
        path = self.path(profile_key)
        try:
            profile = decode_record(path.read_bytes(), Profile)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("cached profile cannot be read, measuring anew", extra=_where(path, error))
            return None
        if profile.profile_key != profile_key or not profile.is_sound():
            logger.warning("cached profile is not sound, measuring anew", extra={"path": str(path)})
            return None
        return profile

    def store(self, profile: Profile) -> None:
        """A file that cannot be written costs a sweep at the next start, so it is logged and nothing more."""
        path = self.path(profile.profile_key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".partial")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(encode_record(profile))
                    file.flush()
                    os.fsync(file.fileno())
                Path(partial).replace(path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    Path(partial).unlink()
        except OSError as error:
            logger.warning("profile not cached", extra=_where(path, error))


def _where(path: Path, error: Exception) -> dict[str, str]:
    return {"path": str(path), "error": str(error)}
