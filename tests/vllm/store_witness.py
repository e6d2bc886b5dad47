# SPDX-License-Identifier: Apache-2.0
"""What a vLLM worker process says about the store it has loaded.

vLLM mixes the class below into its worker (engine argument worker_extension_cls) and runs the methods
inside the worker process on request (LLM.collective_rpc). So the answers describe the process that
really holds the store handle, not the driver and not the scheduler. vLLM refuses an extension whose
names collide with the worker's own, hence the common prefix.
"""
import os
import sys
from pathlib import PurePath


def _connector_worker():
    from vllm.distributed.kv_transfer import kv_transfer_state

    if not kv_transfer_state.has_kv_transfer_group():
        return None
    return kv_transfer_state.get_kv_transfer_group().connector_worker


def is_store_file(path: str) -> bool:
    """Whether a mapped file is a shared object of a store: its own name or its folder's name says so."""
    if ".so" not in path:
        return False
    return any(word in part for part in PurePath(path).parts[-2:] for word in ("mooncake", "egmstore", "libegm"))


def _mapped_store_files() -> list[str]:
    """The store's shared objects in this process, from the kernel's own list."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {field[5] for line in maps if len(field := line.rstrip("\n").split(maxsplit=5)) == 6}
    return sorted(path for path in paths if is_store_file(path))


def _file_of(module) -> str:
    """Where a module was loaded from, links resolved; empty for none or a built-in one."""
    file = getattr(module, "__file__", None)
    return os.path.realpath(file) if file else ""


def _owners(package: str) -> list[str]:
    """Names of the installed distributions that provide a top-level package."""
    from importlib import metadata

    return sorted(set(metadata.packages_distributions().get(package, [])))


class StoreWitness:
    """Methods added to vLLM's worker class."""

    def egm_describe_store(self) -> dict:
        module = sys.modules.get("mooncake.store")
        worker = _connector_worker()
        handle = getattr(worker, "store", None)
        return {
            "pid": os.getpid(),
            "loaded": module is not None,
            "module_file": _file_of(module),
            "package_file": _file_of(sys.modules.get("mooncake")),
            "handle_file": _file_of(sys.modules.get(type(handle).__module__)),
            "doc": (getattr(module, "__doc__", None) or "").strip(),
            "egmstore_version": str(getattr(module, "egmstore_version", "") or ""),
            "handle_type": f"{type(handle).__module__}.{type(handle).__qualname__}" if handle else "",
            "distributions": _owners("mooncake"),
            "mapped_files": _mapped_store_files(),
        }

    def egm_saves_pending(self) -> int:
        """Save jobs that are queued or running in the connector's sender thread."""
        thread = getattr(_connector_worker(), "kv_send_thread", None)
        return thread.request_queue.unfinished_tasks if thread else 0
