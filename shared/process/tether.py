"""Exec a command that the kernel kills as soon as its parent is gone: ``python tether.py PARENT_PID COMMAND...``.

The tie is set in the child, in a program of its own, because code between fork and exec (``preexec_fn``) is unsafe
in a parent that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tied(*command: str) -> tuple[str, ...]:
    """The command as a child of this process that ends with it, however that ends; on Linux, elsewhere as it is."""
    if not sys.platform.startswith("linux"):
        return command
    return sys.executable, "-I", "-S", __file__, str(os.getpid()), *command


def main(parent_pid: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:  # it died before the tie was set
        sys.exit("the parent is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
