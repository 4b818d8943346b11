"""What is kept of the runs, so that an interrupted comparison goes on where it was, with the same code and machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.harness.origin import DIRTY, Origin
from benchmarks.vllm.workload import Setting
from loadgen.errors import WorkloadError
from loadgen.report.report import Report

T = TypeVar("T")


class FailedTry(msgspec.Struct, frozen=True):
    """A try of a run in which online requests failed."""

    system: str
    run: str
    attempt: int
    what_failed: str


class StoredRun(msgspec.Struct, frozen=True):
    """``report``: of the last try, the first without a failed online request if there is one."""

    report: Report
    failures: list[FailedTry] = []


class RunStore:
    """A folder with one JSON file for each whole run, ``SYSTEM/NAME.json``, the setting that all of them share, and the
    origin of the first."""

    def __init__(self, folder: Path, setting: Setting, origin: Origin, resume: bool) -> None:
        """Raises WorkloadError for a folder with runs that are not to be taken over, or of another setting, other code
        or another machine."""
        self.folder = folder
        if (found := _read(self._path("setting"), Setting)) and not resume:
            raise WorkloadError(f"{folder} holds runs: go on with --resume, or choose another folder with --work")
        if found and (others := _others(vars(found), vars(setting))):
            raise WorkloadError(f"{folder} holds runs of another setting ({others}): use --work")
        if found and (others := _other_origin(_read(self._path("origin"), Origin), origin)):
            raise WorkloadError(f"{folder} holds runs of another origin ({others}): use --work")
        try:
            if not found:
                _write(self._path("origin"), origin)
            _write(self._path("setting"), setting)
        except OSError as error:
            raise WorkloadError(f"cannot write {folder}: {error.strerror}") from error

    def get(self, system: str, name: str) -> StoredRun | None:
        """None for a run that is not done. Raises WorkloadError for a file that is no run."""
        return _read(self._path(system, name), StoredRun)

    def put(self, system: str, name: str, run: StoredRun) -> None:
        _write(self._path(system, name), run)

    def server_folder(self, system: str) -> Path:
        """For a server's logs and data."""
        folder = self.folder / system / "server"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def rates(self) -> dict[float, float]:
        """Requests/s by the share of time that they keep a server busy, as far as they were chosen."""
        return _read(self._path("rates"), dict[float, float]) or {}

    def put_rate(self, share: float, rate: float) -> None:
        _write(self._path("rates"), {**self.rates(), share: rate})

    def _path(self, *names: str) -> Path:
        return self.folder.joinpath(*names[:-1], f"{names[-1]}.json")


def _others(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """What differs, in words; empty where nothing does."""
    pairs = ((name, value, wanted[name]) for name, value in found.items())
    return ", ".join(f"{name} {value}, not {other}" for name, value, other in pairs if value != other)


def _other_origin(found: Origin | None, now: Origin) -> str:
    """Where runs of both may not stand in one table. Nobody knows what code was that had not been committed."""
    if found is None or found.revision is None or found.revision.endswith(DIRTY):
        return "revision " + ("unknown" if found is None or found.revision is None else found.revision)
    first, second = ({"revision": each.revision, "machine": each.machine} for each in (found, now))
    return _others(first, second)


def _read(path: Path, type: type[T]) -> T | None:
    """None where there is no file. Raises WorkloadError for one of another kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type, strict=False)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{path}: {error}") from error


def _write(path: Path, value: Setting | Origin | StoredRun | dict[float, float]) -> None:
    """In one step, so that an interrupt leaves no half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    fresh.replace(path)
