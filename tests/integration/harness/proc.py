# SPDX-License-Identifier: Apache-2.0
"""The test's side of a store process, and of any program that a test starts.

Program is a started process with a log file and signals.  StoreProc adds the calls: `A.put("k", b"v")` is a call
with a default limit, `A.start("put", ...)` gives a Pending to wait for, `A.do(function, ...)` sends a function's
source to run in the process.  A call that does not end in time raises CallTimeout, a process that died while a
call was open raises ProcessDied, an exception in the call raises RemoteError: each is a failure unless the test
says otherwise.
"""
import inspect
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing import Pipe

CALL_LIMIT = 40.0  # the store's own deadline is 30 s + 0.1 s
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")


class CallTimeout(AssertionError):
    pass


class ProcessDied(AssertionError):
    pass


class RemoteError(AssertionError):
    def __init__(self, kind, text, trace):
        super().__init__(f"{kind}: {text}\n{trace}")
        self.kind = kind
        self.text = text


def python():
    return os.environ.get("EGM_TEST_PYTHON", sys.executable)


class Program:
    """A child process in its own session; `log` is the path that took its stdout and stderr."""

    def __init__(self, name, argv, env, log, pass_fds=()):
        self.name = name
        self.argv = argv
        self.log = log
        with open(log, "ab") as sink:
            self.popen = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                                          start_new_session=True, pass_fds=pass_fds)
        self.pid = self.popen.pid
        self.stopped = False

    def signal(self, number):
        """To the process, if it still runs; another thread may be reaping it at this moment."""
        self.popen.send_signal(number)

    def stop(self):
        self.signal(signal.SIGSTOP)
        self.stopped = True
        end = time.monotonic() + 5
        while time.monotonic() < end and self.state() not in ("T", None):
            time.sleep(0.001)

    def cont(self):
        self.signal(signal.SIGCONT)
        self.stopped = False

    def kill(self):
        """kill -9 and reap."""
        self.signal(signal.SIGKILL)
        return self.popen.wait(20)

    def wait(self, limit=10.0):
        """Exit code, or None when the process still runs after `limit` seconds."""
        try:
            return self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            return None

    @property
    def alive(self):
        return self.popen.poll() is None

    def state(self):
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            return None

    def end(self):
        """Kill the whole session of the process; used by the clean-up."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.kill()

    def text(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def rss(self):
        with open(f"/proc/{self.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def private_rss(self):
        """Resident bytes that are not shared memory (VmRSS without RssShmem)."""
        fields = {}
        with open(f"/proc/{self.pid}/status") as status:
            for line in status:
                name, _, value = line.partition(":")
                fields[name] = value.split()
        return (int(fields["RssAnon"][0]) + int(fields["RssFile"][0])) * 1024

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def maps(self):
        with open(f"/proc/{self.pid}/maps") as maps:
            return maps.read().splitlines()


class Pending:
    """A call on its way."""

    def __init__(self, proc, what):
        self.proc = proc
        self.what = what
        self.done = threading.Event()
        self.status = None
        self.value = None
        self.seconds = None

    def ready(self):
        return self.done.is_set()

    def result(self, limit=CALL_LIMIT):
        if not self.done.wait(limit):
            raise CallTimeout(f"{self.proc.name}: {self.what} did not end within {limit} s")
        if self.status == "died":
            raise ProcessDied(f"{self.proc.name}: process ended during {self.what}, code {self.proc.popen.poll()}")
        if self.status == "exc":
            raise RemoteError(*self.value)
        return self.value


class StoreProc(Program):
    def __init__(self, name, env, log, prefix=()):
        here, there = Pipe()
        os.set_inheritable(there.fileno(), True)
        argv = [*prefix, python(), "-u", WORKER, str(there.fileno())]
        super().__init__(name, argv, env, log, pass_fds=(there.fileno(),))
        there.close()
        self.connection = here
        self.pending = {}
        self.lock = threading.Lock()
        self.ids = itertools.count(1)
        self.hostname = None
        self.closed = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                request_id, status, value, seconds = self.connection.recv()
            except (EOFError, OSError, TypeError):
                break
            with self.lock:
                call = self.pending.pop(request_id, None)
            if call:
                call.status, call.value, call.seconds = status, value, seconds
                call.done.set()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            pass
        with self.lock:
            self.closed = True
            left, self.pending = list(self.pending.values()), {}
        for call in left:
            call.status = "died"
            call.done.set()

    def _send(self, what, on_main, kind, name, args, kwargs):
        call = Pending(self, what)
        with self.lock:
            if self.closed:
                call.status = "died"
                call.done.set()
                return call
            request_id = next(self.ids)
            self.pending[request_id] = call
        try:
            self.connection.send((request_id, on_main, kind, name, args, kwargs))
        except OSError:
            call.status = "died"
            call.done.set()
        return call

    # ---- calls ---------------------------------------------------------------------------------
    def start(self, method, *args, _main=False, **kwargs):
        """Begin method of the store object."""
        return self._send(method, _main, "store", method, args, kwargs)

    def start_op(self, name, *args, _main=False, **kwargs):
        return self._send(name, _main, "op", name, args, kwargs)

    def start_do(self, function, *args, _main=False, **kwargs):
        source = textwrap.dedent(inspect.getsource(function))
        where = (source, function.__name__, inspect.getsourcefile(function), function.__code__.co_firstlineno)
        return self._send(function.__name__, _main, "src", where, args, kwargs)

    def op(self, name, *args, limit=CALL_LIMIT, **kwargs):
        return self.start_op(name, *args, **kwargs).result(limit)

    def do(self, function, *args, limit=CALL_LIMIT, **kwargs):
        return self.start_do(function, *args, **kwargs).result(limit)

    def call(self, method, *args, limit=CALL_LIMIT, **kwargs):
        return self.start(method, *args, **kwargs).result(limit)

    def leave(self):
        """Let the interpreter end in the ordinary way."""
        self._send("leave", False, "leave", None, (), {})

    def __getattr__(self, method):
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, limit=CALL_LIMIT, **kwargs: self.call(method, *args, limit=limit, **kwargs)
