"""The images of docker-compose.yml, built on bases that are made here of what Debian's mirror has."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import nats_server_binary
from tests.deploy.compose import ROOT, Service, read_services
from tests.deploy.containers import Buildah, Image

NEWEST = "trixie"  # of which the Dockerfiles' own base is, with its Python 3.13
SUITES = {"cp311": "bookworm", "cp313": NEWEST}  # by their Python
BASE_PACKAGES = ("python3", "python3-venv", "python-is-python3", "ca-certificates")
FOR_CPUS = {"SLACKWATER_EXECUTOR_LOCK": "executor-cpu"}
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
EXECUTOR, NATS = "slackwater-executor", "nats"
NATS_DOCKERFILE = """\
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends wget
COPY nats-server /usr/local/bin/
ENTRYPOINT ["nats-server"]
"""


class BuiltImages:
    """``services``: as compose has them, with torch's build for CPUs. Their images are there after ``build``: as the
    Dockerfiles say, with what pip is told on this machine. NATS's is another's, and cannot be had here: in its place
    stands one with the server that tests have."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """``environ``: compose's variables."""
        self._folder = folder
        self._pip = pip_settings()
        torch = next(Path(self._pip.get("find-links", folder)).glob("torch-*+cpu-*.whl"), None)
        self._executor_suite = NEWEST if torch is None else SUITES[torch.name.split("-")[2]]
        index = {"PIP_EXTRA_INDEX_URL": TORCH_INDEX} if torch is None else {}
        self.services = read_services({**FOR_CPUS, **index, **environ})
        self.buildah = Buildah(folder / "buildah")
        self.images: dict[str, Image] = {}  # by the names that services have for them

    def build(self) -> None:
        self.buildah.folder.mkdir(parents=True)
        for suite in {NEWEST, self._executor_suite}:
            self.buildah.make_base(_base(suite), suite, BASE_PACKAGES)
        for service in self.services.values():
            if service.build is not None and service.image not in self.images:
                self._build(service, service.build.dockerfile, service.build.args)
        self._build_nats()

    def tag(self, image: str) -> str:
        """What it is called here."""
        return f"localhost/{re.split('[:@]', image)[0]}"

    def num_bytes(self, image: str) -> int:
        """Of its files, beyond those of its base."""
        return self.buildah.num_bytes(self.tag(image)) - self.buildah.num_bytes(self._base_of(image))

    def remove(self) -> None:
        self.buildah.remove_all()

    def _base_of(self, image: str) -> str:
        return _base(self._executor_suite if image == EXECUTOR else NEWEST)

    def _build(self, service: Service, dockerfile: str, args: Mapping[str, str]) -> None:
        image = service.image
        own = {**args, "PYTHON_IMAGE": self._base_of(image)}
        self.buildah.build(self.tag(image), ROOT / dockerfile, ROOT, own, self._volumes())
        self.images[image] = self.buildah.image(self.tag(image))

    def _build_nats(self) -> None:
        context, image = self._folder / NATS, self.services[NATS].image
        context.mkdir()
        (context / "Dockerfile").write_text(NATS_DOCKERFILE)
        (context / "nats-server").write_bytes(Path(nats_server_binary()).resolve().read_bytes())
        (context / "nats-server").chmod(0o755)
        self.buildah.build(self.tag(image), context / "Dockerfile", context, {"PYTHON_IMAGE": _base(NEWEST)}, {})
        self.images[image] = self.buildah.image(self.tag(image))

    def _volumes(self) -> dict[Path, str]:
        """What pip reads, and what that names."""
        settings, volumes = dict(self._pip), {}
        for name, place in (("cert", "/etc/pip.pem"), ("find-links", "/mnt/wheels")):
            if name in settings:
                volumes[Path(settings[name])] = settings[name] = place
        pip_conf = self._folder / "pip.conf"
        lines = (f"{name} = {value}" for name, value in settings.items())
        pip_conf.write_text("\n".join(["[global]", *lines, ""]))
        return {pip_conf: "/etc/pip.conf", **volumes}


def pip_settings() -> dict[str, str]:
    """Of this machine's pip, what a build needs as well: its index, what lets it in there, a folder of wheels."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    return {name: value for name, value in found.items() if name in ("index-url", "cert", "find-links")}


def _base(suite: str) -> str:
    return f"localhost/python-{suite}"
