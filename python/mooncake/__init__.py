# SPDX-License-Identifier: Apache-2.0
"""Mooncake's Python API, served by egmstore.

`from mooncake.store import MooncakeDistributedStore` works as with upstream's wheels. This package
takes upstream's import name, so the two cannot live in one environment: files of both would mix in
one folder and which one runs would depend on the order of installation. That is checked here, once,
at import.
"""

import importlib.metadata
import warnings

from mooncake.store import egmstore_version

__all__ = ["egmstore_version"]

_UPSTREAM_PREFIX = "mooncake-transfer-engine"


def _upstream_distributions():
    """Names of installed distributions that own the same import name. Never raises."""
    found = set()
    for distribution in importlib.metadata.distributions():
        try:
            name = distribution.metadata["Name"] or ""
        except Exception:  # a broken installation of something else is not our business
            continue
        if name.lower().replace("_", "-").startswith(_UPSTREAM_PREFIX):
            found.add(name)
    return sorted(found)


for _name in _upstream_distributions():
    warnings.warn(
        f"{_name} is installed beside egmstore and both provide the package 'mooncake': "
        f"run 'pip uninstall {_name}', then reinstall egmstore",
        RuntimeWarning,
        stacklevel=2,
    )
