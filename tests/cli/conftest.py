# SPDX-License-Identifier: Apache-2.0
"""Tests of the egmstore program from outside: texts, exit codes, flags of Mooncake, pages, signals.

EGM_TEST_BIN names the folder of egmstore, mooncake_master and mooncake_client (default: build/src/cli). With EGM_UPDATE=1
golden files and docs/config.md are rewritten instead of compared.
"""
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("EGM_TEST_BIN", ROOT / "build" / "src" / "cli"))


def free_port():
    """Below the ephemeral range, so that no outgoing connection takes it before the program binds it."""
    for _ in range(200):
        port = random.randrange(18000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def wait_for(condition, limit=10.0, what="condition"):
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} not reached within {limit} s"
        time.sleep(0.02)
    return value


def http(port, path, method="GET"):
    """(status, text); (0, reason) when there is no answer."""
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Programs:
    """Starts programs with an environment of their own and ends what is left of them."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("EGMSTORE_", "MC_", "MOONCAKE_"))}
        self.env["EGMSTORE_RUNTIME_DIR"] = str(folder / "run")

    def run(self, *argv, env=None, stdin=None, program="egmstore", text=True):
        return subprocess.run([BIN / program, *map(str, argv)], env={**self.env, **(env or {})}, input=stdin,
                              capture_output=True, text=text, timeout=60)

    def start(self, *argv, program="egmstore", env=None):
        log = self.folder / f"{len(self.started)}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen([BIN / program, *map(str, argv)], env={**self.env, **(env or {})}, stdout=out,
                                       stderr=out, stdin=subprocess.DEVNULL)
        process.log = log
        process.text = lambda: log.read_text(errors="replace")
        self.started.append(process)
        return process

    def start_until(self, word, *argv, **kwargs):
        """Started, and has written `word`."""
        process = self.start(*argv, **kwargs)
        wait_for(lambda: word in process.text() or process.poll() is not None, 15, f"'{word}' of {argv}")
        assert process.poll() is None, process.text()
        return process

    def master(self, *argv, **kwargs):
        port, metrics = free_port(), free_port()
        process = self.start_until("master serving", "master", "--port", port, "--metrics-port", metrics, *argv, **kwargs)
        process.port, process.metrics, process.address = port, metrics, f"127.0.0.1:{port}"
        return process

    def provider(self, master, *argv):
        return self.start_until("ready name=", "provider", "--master", master.address, "--hostname", "127.0.0.1",
                                "--size", "16MB", *argv)

    def end(self):
        for process in reversed(self.started):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def programs():
    import shutil
    import tempfile
    folder = pathlib.Path(tempfile.mkdtemp(prefix="egmcli-", dir="/tmp"))  # Unix socket paths are short
    (folder / "run").mkdir()
    made = Programs(folder)
    yield made
    made.end()
    shutil.rmtree(folder, ignore_errors=True)
