"""Where nats-server keeps what it is told: a folder, or a small disk of its own that can be full and lose its power."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

DISK_MIB = 192
BALLAST = "ballast"
SELDOM_S = 300  # ext4 writes back by itself: until then only what was synced is on the disk


class Store(Protocol):
    """``path``: nats-server's folder."""

    path: Path

    def open(self) -> None: ...

    def close(self) -> None: ...


class Folder:
    """On the machine's own disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nats"

    def open(self) -> None:
        self.path.mkdir(parents=True)

    def close(self) -> None:
        return


class Disk:
    """An ext4 file system in a file, mounted through a loop device.

    What a program has written stands in the machine's memory until it syncs, or ext4 writes it back; the file has what
    the device has. So a copy of the file, taken after the program was killed, is what a power cut leaves, and mounting
    it goes through ext4's own recovery.
    """

    def __init__(self, folder: Path, num_mib: int = DISK_MIB) -> None:
        self._image = folder / "disk.img"
        self._mount = folder / "disk"
        self._num_mib = num_mib
        self.path = self._mount / "nats"

    def open(self) -> None:
        self._mount.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(self._num_mib * 2**20)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        self._attach()

    def close(self) -> None:
        if os.path.ismount(self._mount):
            _run("umount", "--lazy", str(self._mount))

    def fill(self) -> None:
        """Until nothing more can be written."""
        with (self._mount / BALLAST).open("ab") as file:
            size = 2**20
            while size:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def free(self) -> None:
        (self._mount / BALLAST).unlink(missing_ok=True)

    def lose_power(self) -> None:
        """What was not synced is gone; nobody may have a file of it open."""
        torn = self._image.with_suffix(".torn")
        shutil.copyfile(self._image, torn)
        _run("umount", str(self._mount))
        torn.replace(self._image)
        self._attach()

    def _attach(self) -> None:
        _run("mount", "-o", f"loop,commit={SELDOM_S}", str(self._image), str(self._mount))
        self.path.mkdir(exist_ok=True)


def may_mount(folder: Path) -> bool:
    """Loop devices need a right that not every machine gives."""
    disk = Disk(folder, num_mib=8)
    try:
        disk.open()
        return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
