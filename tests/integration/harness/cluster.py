# SPDX-License-Identifier: Apache-2.0
"""Master, stores and providers of one test, all with the same environment and all gone at its end.

The programs are looked for in EGM_TEST_BIN, then beside the interpreter (EGM_TEST_PYTHON), then on PATH.
`mover` is 'map' (shared memory on one host, the default of the product) or 'tcp' (EGMSTORE_MAP=0).
"""
import os
import shutil
import tempfile
import time
import uuid

from . import net
from .pattern import MiB
from .proc import Program, ProcessDied, StoreProc, python

LEASE_MS = 500
CLIENT_TTL_S = 3


def program(name):
    for folder in (os.environ.get("EGM_TEST_BIN"), os.path.dirname(python())):
        if folder and os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return shutil.which(name)


class Master(Program):
    """mooncake_master on free ports. Flags: keyword -> -keyword=value."""

    def __init__(self, cluster, port, metrics_port, flags, raw=()):
        self.port = port
        self.metrics_port = metrics_port
        self.address = f"127.0.0.1:{port}"
        argv = [program("mooncake_master") or "mooncake_master", f"-port={port}", f"-metrics_port={metrics_port}"]
        argv += [f"-{name}={value}" for name, value in flags.items()] + list(raw)
        super().__init__(f"master{port}", argv, cluster.env(), cluster.log_path("master"))

    def http(self, path, timeout=5.0):
        return net.http_get(self.metrics_port, path, timeout)

    def metrics(self):
        status, text = self.http("/metrics")
        assert status == 200, f"/metrics answered {status}: {text[:200]}"
        return net.parse_metrics(text)

    def metric(self, name):
        return self.metrics().get(name)

    def keys(self):
        status, text = self.http("/get_all_keys")
        assert status == 200, f"/get_all_keys answered {status}: {text[:200]}"
        return [line for line in text.split("\n") if line]

    def segments(self):
        status, text = self.http("/get_all_segments")
        assert status == 200, f"/get_all_segments answered {status}: {text[:200]}"
        return [line for line in text.split("\n") if line]

    def wait_ready(self, limit=15.0):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if not self.alive:
                return False
            if net.send_raw(("127.0.0.1", self.port), b"", limit=0.05)[0] != "refused" and self.http("/metrics", 1.0)[0] == 200:
                return True
            time.sleep(0.05)
        return False


class Cluster:
    def __init__(self, mover="map", long=False, base_env=None):
        self.mover = mover
        self.long = long
        self.id = uuid.uuid4().hex
        self.folder = tempfile.mkdtemp(prefix="egmt-", dir="/tmp")  # short: Unix socket paths end at 107 bytes
        self.programs = []
        self.the_master = None
        self.base_env = dict(base_env or {})

    # ---- environment ---------------------------------------------------------------------------
    def env(self, extra=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("MC_", "MOONCAKE_", "EGMSTORE_"))}
        env["EGM_TEST_ID"] = self.id
        env["EGMSTORE_RUNTIME_DIR"] = os.path.join(self.folder, "run")
        env["PYTHONFAULTHANDLER"] = "1"
        if self.mover == "tcp":
            env["EGMSTORE_MAP"] = "0"
        env.update(self.base_env)
        env.update({k: str(v) for k, v in (extra or {}).items()})
        os.makedirs(env["EGMSTORE_RUNTIME_DIR"], exist_ok=True)
        return env

    def log_path(self, name):
        return os.path.join(self.folder, f"{name}-{len(self.programs)}.log")

    def adopt(self, started):
        self.programs.append(started)
        return started

    # ---- masters -------------------------------------------------------------------------------
    def master(self, port=None, metrics_port=None, raw=(), **flags):
        """Start a master and wait until it serves. A bind lost to another process is tried again."""
        flags = {"default_kv_lease_ttl": LEASE_MS, "client_ttl": CLIENT_TTL_S, **flags}
        for _ in range(5):
            started = self.adopt(Master(self, port or net.free_port(), metrics_port or net.free_port(), flags, raw))
            if started.wait_ready():
                self.the_master = started
                return started
            started.kill()
            if port:
                time.sleep(0.2)
        raise AssertionError(f"master does not start: {started.argv}\n{started.text()[-2000:]}")

    def restart_master(self, old, **flags):
        """A new master on the ports of one that is gone."""
        return self.master(port=old.port, metrics_port=old.metrics_port, **flags)

    # ---- stores and providers ------------------------------------------------------------------
    def spawn(self, name, env=None, prefix=()):
        """A store process that has not called setup."""
        return self.adopt(StoreProc(name, self.env(env), self.log_path(name), prefix))

    def start_setup(self, proc, segment=64 * MiB, local=16 * MiB, hostname="127.0.0.1", master=None, store="s", **kwargs):
        address = master or self.the_master.address
        return proc.start("setup", hostname, "P2PHANDSHAKE", segment, local, "tcp", "", address, _store=store, **kwargs)

    def store(self, name, segment=64 * MiB, local=16 * MiB, hostname="127.0.0.1", master=None, env=None, prefix=()):
        """A store process after setup. Segment 0 = requester only."""
        proc = self.spawn(name, env, prefix)
        code = self.start_setup(proc, segment, local, hostname, master).result(60)
        assert code == 0, f"setup of {name} answered {code}\n{proc.text()[-2000:]}"
        proc.hostname = proc.call("get_hostname")
        return proc

    def client(self, name, **kwargs):
        return self.store(name, segment=0, **kwargs)

    def provider(self, hostname, size_gib=1, memory="shm", extra=()):
        """The storage-only daemon. Only where the product's own binary exists."""
        binary = program("egmstore")
        started = self.adopt(Program(f"provider-{hostname}", [
            binary, "provider", "--master", self.the_master.address, "--hostname", hostname, "--memory", memory,
            "--size-gib", str(size_gib), *extra], self.env(), self.log_path("provider")))
        wait_for(lambda: hostname in "\n".join(self.the_master.segments()) or not started.alive, 30, "segment of provider")
        if not started.alive:
            raise ProcessDied(started.text()[-2000:])
        return started

    # ---- end -----------------------------------------------------------------------------------
    def strays(self):
        """Processes that carry our id and are not among those we started."""
        known = {p.pid for p in self.programs}
        marker = f"EGM_TEST_ID={self.id}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) in known:
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as environ:
                    if marker in environ.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
        return found

    def close(self):
        """Kill all, reap all; the list of strays that were left."""
        for started in self.programs:
            started.end()
        time.sleep(0.02)
        strays = self.strays()
        for pid in strays:
            try:
                os.kill(pid, 9)
            except OSError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)
        return strays


def wait_for(condition, limit, what="condition", step=0.05):
    """Poll until the condition is true; its value. Fails after `limit` seconds."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"{what} not reached within {limit} s")
        time.sleep(step)
