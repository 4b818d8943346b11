"""Folders that nobody but this user may look into."""

from pathlib import Path

FOR_OWNER = 0o700


def make_private(folder: Path) -> None:
    """Made where it is absent, closed to others where it is there. Raises OSError."""
    folder.mkdir(mode=FOR_OWNER, parents=True, exist_ok=True)
    folder.chmod(FOR_OWNER)
