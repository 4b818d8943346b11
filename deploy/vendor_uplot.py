"""``python deploy/vendor_uplot.py``: uPlot, for the dashboard's charts, from npm into the gateway's static files.

It needs npm, and whatever registry that is set up for. The package is taken only where its hash is the one below; what
is taken of it is committed, with a list of hashes, so that no installation needs npm.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "uplot@1.6.32"
INTEGRITY = "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
FILES = {
    "package/LICENSE": "LICENSE",
    "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "package/dist/uPlot.min.css": "uPlot.min.css",
}
FOLDER = Path(__file__).resolve().parent.parent / "services" / "gateway" / "static" / "vendor" / "uplot"
SUMS = "SHA256SUMS"  # as of sha256sum, after a line that names the package


def main() -> int:
    npm = shutil.which("npm")
    if npm is None:
        print("npm is needed, and not there", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([npm, "pack", "--silent", PACKAGE, "--pack-destination", folder], check=True)
        (archive,) = Path(folder).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != INTEGRITY:
            print(f"{PACKAGE} is not what it was: its hash is sha512-{digest}", file=sys.stderr)
            return 1
        _unpack(archive)
    return 0


def _unpack(archive: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [f"# {PACKAGE} {INTEGRITY}"]
    with tarfile.open(archive) as package:
        for source, name in FILES.items():
            member = package.extractfile(source)
            assert member is not None
            content = member.read()
            (FOLDER / name).write_bytes(content)
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    (FOLDER / SUMS).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
