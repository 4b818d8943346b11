"""The files of a page, read once: they are there for who may open no more files, too."""

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response
from starlette.exceptions import HTTPException

OTHER_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class PageFile:
    """``etag``: says whether a browser has it already."""

    content: bytes
    media_type: str
    etag: str


class PageFiles:
    """All files of a folder, as they are when it is made."""

    def __init__(self, folder: Path, headers: dict[str, str]) -> None:
        """``headers``: of every answer."""
        self._headers = headers
        paths = (path for path in folder.rglob("*") if path.is_file())
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in paths}

    def answer(self, request: Request, name: str) -> Response:
        """Raises HTTPException (404)."""
        file = self._files.get(name)
        if file is None:
            raise HTTPException(404)
        headers = {**self._headers, "ETag": file.etag}
        if file.etag in request.headers.get("if-none-match", "").replace("W/", "").split(", "):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return PageFile(content, mimetypes.guess_type(path.name)[0] or OTHER_TYPE, etag)
