# SPDX-License-Identifier: Apache-2.0
"""Console scripts: each replaces its process by the installed `egmstore` binary.

Replacing, not spawning, so that the pid a shell or supervisor knows is the daemon's and signals
reach it. The binary is looked for in this order: $EGMSTORE_BINARY, the environment's script folder
(where the wheel puts it), the build tree that holds this package, PATH. Scripts of that name are
passed over: only the binary itself will do.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ELF_MAGIC = b"\x7fELF"


def _is_binary(path) -> bool:
    try:
        with open(path, "rb") as file:
            return os.access(path, os.X_OK) and file.read(4) == _ELF_MAGIC
    except OSError:
        return False


def _candidates():
    yield Path(sysconfig.get_path("scripts")) / "egmstore"
    build_root = _HERE.parents[1]
    yield build_root / "src" / "cli" / "egmstore"
    yield build_root / "egmstore"
    for folder in os.get_exec_path():
        yield Path(folder) / "egmstore"


def find_binary() -> str:
    """Path of the egmstore binary. FileNotFoundError if there is none."""
    named = os.environ.get("EGMSTORE_BINARY")
    if named:
        path = shutil.which(named)
        if not path:
            raise FileNotFoundError(f"EGMSTORE_BINARY names no executable: {named}")
        return path
    for path in _candidates():
        if _is_binary(path):
            return str(path)
    raise FileNotFoundError(
        "no egmstore binary: install egmstore, or set EGMSTORE_BINARY to its path"
    )


def _run(name, *prefix):
    try:
        path = find_binary()
    except FileNotFoundError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    os.execv(path, [name, *prefix, *sys.argv[1:]])


def main():
    return _run("egmstore")


def mooncake_master():
    return _run("egmstore", "mooncake-master")


def mooncake_client():
    return _run("egmstore", "mooncake-client")
