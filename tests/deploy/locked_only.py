"""``python -m tests.deploy.locked_only LOCK MODULE[:FUNCTION] [ARGUMENTS...]``: import a module, and call what it has
with each of these, which are words of a command line, where no other packages can be imported than those of an image's
lock, and Slackwater's own."""

import importlib
import importlib.metadata
import sys

from packaging.utils import canonicalize_name

from deploy.lock import FOLDER, pins

OWN = {"slackwater", "deploy", "services", "shared", "kernels", "loadgen", "tests"}


class Hidden:
    """A finder, before all others, of modules that are not to be found."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"{name} is of no package of the lock", name=name)


def hidden_by(lock: str) -> set[str]:
    """Modules, of all packages that are installed here, whose packages are not in the lock."""
    locked = {canonicalize_name(each) for each in pins((FOLDER / f"{lock}.txt").read_text())}
    providers = importlib.metadata.packages_distributions()
    return {module for module, each in providers.items() if not locked & set(map(canonicalize_name, each))} - OWN


def main() -> None:
    lock, target, *calls = sys.argv[1:]
    hidden = hidden_by(lock)
    for name in [each for each in sys.modules if each.partition(".")[0] in hidden]:
        del sys.modules[name]
    sys.meta_path.insert(0, Hidden(hidden))  # type: ignore[arg-type]
    module, _, function = target.partition(":")
    found = importlib.import_module(module)
    for arguments in calls:
        sys.argv[1:] = arguments.split()
        try:
            getattr(found, function)()
        except SystemExit as ended:
            assert not ended.code, arguments


if __name__ == "__main__":
    main()
