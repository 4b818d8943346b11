"""The stack of docker-compose.yml without an engine: each service in its container's file system, on a host of its own,
with the environment, command, volumes and health check that compose gives it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil

from tests.deploy.built_images import BuiltImages
from tests.deploy.compose import ROOT, Service
from tests.deploy.containers import Container
from tests.faults.stack.hosts import Hosts

START_S = 300.0


class ComposedStack:
    """Use as a context manager. It starts what has no profile, each service once those that it waits for are as it
    wants them; ``stop`` ends them again. Names of services are known on every host, as compose has it."""

    def __init__(self, folder: Path, built: BuiltImages) -> None:
        self._folder = folder
        self._built = built
        self.services = built.services
        self._containers: dict[str, Container] = {}

    def __enter__(self) -> ComposedStack:
        self._hosts = Hosts(*self.services)
        self._hosts.__enter__()
        try:
            for name, service in self.services.items():
                if not service.profiles:
                    self._start(name, service)
            for name in self.running:
                self._wait_healthy(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for container in self._containers.values():
            container.kill()
        self._hosts.__exit__(None, None, None)

    @property
    def running(self) -> list[str]:
        """In the order in which they were started."""
        return [name for name, container in self._containers.items() if not container.has_ended]

    def url(self, name: str, port: int) -> str:
        """Of one of its services, for this process."""
        return f"http://{self._hosts.address(name)}:{port}"

    def main_process(self, name: str) -> psutil.Process:
        return self._containers[name].main_process()

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def run(self, name: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """As ``docker compose run --rm -v FOLDER:/given NAME ARGUMENTS``."""
        service = self.services[name]
        container = self._container(service)
        container.mount(folder, "/given", is_read_only=False)
        return container.run([*self._entrypoint(service), *arguments], START_S)

    def is_healthy(self, name: str) -> bool:
        """By the check that compose, or else its image, has for it."""
        service, image = self.services[name], self._built.images[self.services[name].image]
        health = service.health
        command, timeout_s = (health.command, health.timeout_s) if health else (image.health, image.health_timeout_s)
        assert command and service.is_checked
        try:
            return self._containers[name].run(command, timeout_s).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def stop(self, name: str) -> tuple[int, float]:
        """By SIGTERM: its exit status, and what that took. Raises TimeoutExpired beyond compose's grace period."""
        began_s = time.monotonic()
        status = self._containers[name].stop(self.services[name].grace_s)
        return status, time.monotonic() - began_s

    def _start(self, name: str, service: Service) -> None:
        for other, condition in service.after.items():
            if condition == "service_healthy":
                self._wait_healthy(other)
            elif condition == "service_completed_successfully":
                assert self._containers[other].wait(START_S) == 0, self.log(other)
        container = self._containers[name] = self._container(service)
        image = self._built.images[service.image]
        command = image.command if service.command is None else service.command
        container.start([*self._entrypoint(service), *command], self._folder / f"{name}.log")

    def _wait_healthy(self, name: str) -> None:
        until_s = time.monotonic() + START_S
        while not self.is_healthy(name):
            assert time.monotonic() < until_s and not self._containers[name].has_ended, f"{name}:\n{self.log(name)}"

    def _container(self, service: Service) -> Container:
        tag, enter = self._built.tag(service.image), self._hosts.on(service.name)
        hosts = {name: self._hosts.address(name) for name in self.services}
        container = Container(self._built.buildah, tag, enter, service.environment, hosts)
        for volume in service.volumes:
            source = self._folder / "volumes" / volume.source if volume.is_named else ROOT / volume.source
            container.mount(source, volume.target, volume.is_read_only)
        return container

    def _entrypoint(self, service: Service) -> tuple[str, ...]:
        return self._built.images[service.image].entrypoint if service.entrypoint is None else service.entrypoint
