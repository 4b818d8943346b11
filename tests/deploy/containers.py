"""Images and containers without an engine, by buildah as root: a container is a file system and a network namespace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

BUILD_S, CALL_S = 1500.0, 300.0
TOOLS = ("buildah", "mmdebstrap", "ip")


def missing_tools() -> list[str]:
    return [name for name in TOOLS if shutil.which(name) is None]


@dataclass(frozen=True, slots=True)
class Image:
    """What an image says of itself. ``health``: as it is run in a container; empty for none."""

    user: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    health: tuple[str, ...]
    health_timeout_s: float


class Buildah:
    """All that it makes is in one folder, and gone after ``remove_all``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._storage = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")

    def argv(self, *arguments: str) -> list[str]:
        return ["buildah", *self._storage, *arguments]

    def call(self, *arguments: str, timeout_s: float = CALL_S) -> str:
        """What it prints. Fails with what it says where it does."""
        done = subprocess.run(self.argv(*arguments), capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"buildah {' '.join(arguments)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()

    def make_base(self, name: str, suite: str, packages: Sequence[str]) -> None:
        """An image of a Debian with these packages, and no more than they need."""
        tar = self.folder / f"{suite}.tar"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}", suite, str(tar)]
        made = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_S)
        assert made.returncode == 0, made.stderr[-4000:]
        container = self.call("from", "scratch")
        self.call("add", "--quiet", container, str(tar), "/")
        self.call("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        self.call("commit", "--quiet", "--rm", container, name, timeout_s=BUILD_S)
        tar.unlink()

    def build(
        self,
        name: str,
        dockerfile: Path,
        context: Path,
        args: Mapping[str, str],
        volumes: Mapping[Path, str],
    ) -> None:
        """``volumes``: what a build sees beside its context, and where."""
        options = [word for key, value in args.items() for word in ("--build-arg", f"{key}={value}")]
        options += [word for source, target in volumes.items() for word in ("--volume", f"{source}:{target}:ro")]
        options += ["--isolation", "chroot", "--network", "host", "--format", "docker", "--quiet"]
        self.call("bud", *options, "--file", str(dockerfile), "--tag", name, str(context), timeout_s=BUILD_S)

    def image(self, name: str) -> Image:
        config: dict[str, Any] = json.loads(self.call("inspect", "--type", "image", name))["Docker"]["config"]
        health = config.get("Healthcheck") or {}
        kind, *command = health.get("Test") or ["NONE"]
        return Image(
            config.get("User", ""),
            tuple(config.get("Entrypoint") or ()),
            tuple(config.get("Cmd") or ()),
            dict(each.split("=", 1) for each in config.get("Env") or ()),
            ("/bin/sh", "-c", *command) if kind == "CMD-SHELL" else tuple(command),
            health.get("Timeout", 0) / 1e9,
        )

    def num_bytes(self, image: str) -> int:
        """Of all files."""
        name, root = self.container(image, {}, {})
        try:
            return sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())
        finally:
            self.call("rm", name)

    def container(self, image: str, environment: Mapping[str, str], hosts: Mapping[str, str]) -> tuple[str, Path]:
        """A new one, which knows these hosts by their names, and where its file system lies."""
        known = [f"--add-host={name}:{address}" for name, address in hosts.items()]
        name = self.call("from", *known, image)
        options = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
        self.call("config", *options, name)
        return name, Path(self.call("mount", name))

    def remove_all(self) -> None:
        self.call("umount", "--all")
        self.call("rm", "--all")
        self.call("rmi", "--all", "--force")
        shutil.rmtree(self.folder)


class Container:
    """One of an image, in the network namespace that ``enter`` enters."""

    def __init__(
        self,
        buildah: Buildah,
        image: str,
        enter: Sequence[str],
        environment: Mapping[str, str],
        hosts: Mapping[str, str],
    ) -> None:
        self._buildah = buildah
        self._enter = enter
        self._name, self._root = buildah.container(image, environment, hosts)
        self._volumes: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self, source: Path, target: str, is_read_only: bool) -> None:
        """For what is run from here on. A folder that is not there yet is made, whose is that of the image is."""
        if not source.exists():
            source.mkdir(parents=True)
            own = self._root / target.lstrip("/")
            if own.exists():
                status = own.stat()
                os.chown(source, status.st_uid, status.st_gid)
                source.chmod(stat.S_IMODE(status.st_mode))
        self._volumes += ["--volume", f"{source}:{target}{':ro' if is_read_only else ''}"]

    def argv(self, command: Sequence[str]) -> list[str]:
        run = ("run", "--isolation", "chroot", "--network", "host", *self._volumes, self._name, "--")
        return [*self._enter, *self._buildah.argv(*run), *command]

    def start(self, command: Sequence[str], log: Path) -> None:
        with log.open("wb") as file:
            self._process = subprocess.Popen(self.argv(command), stdout=file, stderr=subprocess.STDOUT)

    def run(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Beside what runs there, if anything does."""
        return subprocess.run(self.argv(command), capture_output=True, text=True, timeout=timeout_s)

    def main_process(self) -> psutil.Process:
        """What the container is there for."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        while Path(process.cmdline()[0]).name.startswith("buildah"):
            (process,) = [each for each in process.children() if each.status() != psutil.STATUS_ZOMBIE]
        return process

    def stop(self, grace_s: float) -> int:
        """By SIGTERM; the exit status. Raises TimeoutExpired where that takes longer."""
        self.main_process().send_signal(signal.SIGTERM)
        return self.wait(grace_s)

    def wait(self, timeout_s: float) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Whatever is left of it."""
        if self._process is not None and self._process.poll() is None:
            for process in (*psutil.Process(self._process.pid).children(recursive=True), self._process):
                process.kill()
            self._process.wait(CALL_S)
