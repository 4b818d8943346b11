"""Folders of a Hugging Face hub, from its cache or fetched into it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from services.executor.gguf_model import Progress
from shared.errors import ModelError

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
OTHER_WEIGHTS = ["*/*.safetensors", "consolidated*.safetensors"]  # the same, as others read them
Check = Callable[[Path], object]  # raises ModelError for a folder that lacks something


def cached(hub_id: str, files: Sequence[str], check: Check) -> Path | None:
    """What the hub cache holds of it, where that is complete. ``files``: as patterns. Raises ModelError for what is no
    hub id."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        wanted = list(files)
        found = snapshot_download(hub_id, allow_patterns=wanted, ignore_patterns=OTHER_WEIGHTS, local_files_only=True)
        folder = Path(found)
        check(folder)
    except HFValidationError as error:
        raise ModelError(f"{hub_id!r} is neither a folder nor a Hugging Face hub id: {error}") from error
    except (LocalEntryNotFoundError, ModelError):
        return None
    return folder


def fetch(hub_id: str, files: Sequence[str], check: Check, progress: Progress) -> Path:
    """Network and access errors become ModelError."""
    from huggingface_hub import snapshot_download

    progress(f"fetching {hub_id} from the Hugging Face hub")
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=list(files), ignore_patterns=OTHER_WEIGHTS))
    except Exception as error:  # its HTTP library has errors of its own for a connection that is lost
        why = " ".join(str(error).split())
        raise ModelError(
            f"there is no folder {hub_id} here, and cannot fetch {hub_id} from the Hugging Face hub: {why}"
        ) from error
    check(folder)
    return folder
