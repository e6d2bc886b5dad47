# SPDX-License-Identifier: Apache-2.0
"""Store services for one phase of the test: a master, and with `pool` a process that lends memory.

Two suppliers: egmstore (what this repository builds) and upstream (Mooncake's own, from the same
Python environment, to prove the driver on a store that is known to work). Ports are picked free;
two runs on one machine do not meet. A service that ends early is an error with the end of its log.
The kernel ends a service when the thread that started it is gone (setpriv), so a killed driver leaves none.
"""
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

READY_WAIT_S = 30
STOP_WAIT_S = 15                 # a provider drains for 8 s at most
HOST = "127.0.0.1"


class ServiceError(Exception):
    """A service is missing, did not come up or ended; the text names it and its log."""


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all are held open until the last is known, so they differ."""
    held = []
    try:
        for _ in range(count):
            held.append(socket.socket())
            held[-1].bind((HOST, 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def commands(supplier: str, pool_gib: int, ports: list[int]) -> list[list[str]]:
    """Command lines in starting order; ports are {master, metrics, pool, pool's http}."""
    master, metrics, pool, http = map(str, ports)
    address = f"{HOST}:{master}"
    if supplier == "egmstore":
        lines = [["egmstore", "master", "--port", master, "--metrics-port", metrics]]
        if pool_gib:
            lines.append(["egmstore", "provider", "--master", address, "--hostname", HOST,
                          "--memory", "shm", "--size-gib", str(pool_gib)])
        return lines
    lines = [["mooncake_master", "--port", master, "--metrics_port", metrics]]
    if pool_gib:
        lines.append(["mooncake_client", "--host", HOST, "--port", pool, "--http_port", http,
                      "--master_server_address", address, "--metadata_server", "P2PHANDSHAKE",
                      "--protocol", "tcp", "--global_segment_size", f"{pool_gib}GB"])
    return lines


class Services:
    """Starts the services on entry, ends them on exit, last started first."""

    def __init__(self, supplier: str, pool_gib: int, folder: Path, environment: dict[str, str]):
        ports = free_ports(4)
        self.master_address = f"{HOST}:{ports[0]}"
        self.exit_codes: dict[str, int] = {}
        self._metrics = f"http://{HOST}:{ports[1]}/metrics"
        self._lines = commands(supplier, pool_gib, ports)
        self._wants_pool = pool_gib > 0
        self._folder, self._environment = folder, environment
        self._running: list[tuple[str, Path, subprocess.Popen]] = []

    def __enter__(self) -> "Services":
        try:
            for line in self._lines:
                self._start(line)
                if len(self._running) == 1:
                    self._wait("the master's port", self._master_listens)
            if self._wants_pool:
                self._wait("a mounted segment in the master's metrics", self._has_capacity)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        while self._running:
            name, _, process = self._running.pop()
            process.send_signal(signal.SIGTERM)
            try:
                self.exit_codes[name] = process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                self.exit_codes[name] = process.wait()

    def check(self) -> None:
        """Raises when a service has ended by itself."""
        for name, log, process in self._running:
            if process.poll() is not None:
                end = log.read_text(errors="replace").strip().splitlines()[-1:] or ["(empty log)"]
                raise ServiceError(f"{name} ended with status {process.returncode}: {end[0]} (log {log})")

    def _start(self, line: list[str]) -> None:
        executable = shutil.which(line[0], path=self._environment["PATH"])
        if not executable:
            raise ServiceError(f"command '{line[0]}' is not on PATH")
        name = line[0] if line[0] != "egmstore" else f"egmstore-{line[1]}"
        bound = shutil.which("setpriv")
        prefix = [bound, "--pdeathsig", "KILL", "--"] if bound else []
        log = self._folder / f"{name}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen([*prefix, executable, *line[1:]], env=self._environment,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._running.append((name, log, process))

    def _wait(self, what: str, ready) -> None:
        deadline = time.monotonic() + READY_WAIT_S
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"waited {READY_WAIT_S} s in vain for {what}, logs in {self._folder}")
            time.sleep(0.1)

    def _master_listens(self) -> bool:
        host, port = self.master_address.split(":")
        try:
            with socket.create_connection((host, int(port)), 1):
                return True
        except OSError:
            return False

    def _has_capacity(self) -> bool:
        try:
            with urllib.request.urlopen(self._metrics, timeout=2) as page:
                lines = page.read().decode().splitlines()
        except (urllib.error.URLError, OSError):
            return False
        return any(line.startswith("master_total_capacity_bytes") and float(line.split()[-1]) > 0
                   for line in lines)


def environment(base: dict[str, str], bins: list[str], run_folder: str) -> dict[str, str]:
    """The services' environment: the given folders first on PATH, and sockets in a folder of this run."""
    return base | {"PATH": os.pathsep.join([*bins, base.get("PATH", os.defpath)]),
                   "EGMSTORE_RUNTIME_DIR": run_folder}
