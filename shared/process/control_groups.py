"""The control groups (cgroup v2) by which a container or its system limits this process."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = "sys/fs/cgroup"


def own_groups(root: Path = Path("/")) -> Iterator[Path]:
    """Folders: this process's group, and each group that this one is in; none where the system does not tell. ``root``:
    of the files that tell."""
    with contextlib.suppress(OSError):
        own = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
        place = PurePosixPath(GROUPS, own[1] if own else "")
        yield from (root / group for group in (place, *place.parents) if group.is_relative_to(GROUPS))
