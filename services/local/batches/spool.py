"""What is kept for a while: in memory while it is small, else on the disk."""

import tempfile
from typing import BinaryIO, cast

IN_MEMORY_BYTES = 4 * 1024 * 1024


def temporary_file() -> BinaryIO:
    """Gone once closed."""
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES))
