# SPDX-License-Identifier: Apache-2.0
"""The store process: reads requests from a socket pair, runs them on threads, sends the answers back.

Started as `python worker.py FD`.  A request is (id, kind, name, args, kwargs) with kind
  store   method `name` of a store object; kwargs may carry _store="name of another store object in this process"
  op      method `name` of Worker below
  src     `name` is the source of a function; it is compiled here and called as f(worker, *args)
and the flag "main" puts the call on the main thread (for signal tests).  The answer is
(id, "ok" | "exc", value or (type, text), seconds).  A function sent as source sees the names in GLOBALS below.

When the pytest process goes away the socket pair ends and this process leaves at once, without clean-up.
"""
import ctypes
import gc
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness.pattern import BLOCK, Config, MiB, P, P_blocks, describe_difference, verdict  # noqa: E402

RED = 4096
RED_BYTE = 0xA5
FILL_BYTE = 0xEE
libc = ctypes.CDLL(None, use_errno=True)
libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Buffer:
    """size bytes of anonymous memory, prefilled, between two red zones. ptr is page aligned."""

    def __init__(self, size, fill=FILL_BYTE):
        self.size = size
        self.map = mmap.mmap(-1, RED + max(size, 1) + RED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.ptr = self.base + RED
        ctypes.memset(self.base, RED_BYTE, RED)
        ctypes.memset(self.ptr + size, RED_BYTE, RED)
        if fill:
            self.fill(fill)

    def fill(self, byte, offset=0, size=None):
        ctypes.memset(self.ptr + offset, byte, self.size - offset if size is None else size)

    def write(self, data, offset=0):
        assert offset + len(data) <= self.size
        ctypes.memmove(self.ptr + offset, data, len(data))

    def write_huge(self, tag, n):
        offset = 0
        for block in P_blocks(tag, n):
            self.write(block, offset)
            offset += len(block)

    def bytes(self, offset=0, size=None):
        return ctypes.string_at(self.ptr + offset, self.size - offset if size is None else size)

    def same(self, data, offset=0):
        return libc.memcmp(self.ptr + offset, data, len(data)) == 0

    def all(self, byte, offset=0, size=None):
        size = self.size - offset if size is None else size
        chunk = bytes([byte]) * min(size, MiB)
        for at in range(0, size, MiB):
            n = min(MiB, size - at)
            if libc.memcmp(self.ptr + offset + at, chunk, n) != 0:
                return False
        return True

    def red_ok(self):
        red = bytes([RED_BYTE]) * RED
        return ctypes.string_at(self.base, RED) == red and ctypes.string_at(self.ptr + self.size, RED) == red

    def verdict(self, expect, offset=0):
        if not self.red_ok():
            return "RED ZONE overwritten"
        if self.same(expect, offset):
            return "ok"
        return "WRONG bytes: " + describe_difference(self.bytes(offset, len(expect)), expect)


class Worker:
    """State of this process: its store objects and buffers, and the operations that tests share."""

    def __init__(self):
        self.stores = {}
        self.kept = {}
        self.counters = {}

    @property
    def store(self):
        return self.get_store("s")

    def get_store(self, name):
        if name not in self.stores:
            from mooncake.store import MooncakeDistributedStore
            self.stores[name] = MooncakeDistributedStore()
        return self.stores[name]

    def config(self, values):
        from mooncake.store import ReplicateConfig
        config = ReplicateConfig()
        for name, value in values.items():
            setattr(config, name, value)
        return config

    def buf(self, size, register=True, fill=FILL_BYTE, store=None):
        buffer = Buffer(size, fill)
        if register:
            code = (store or self.store).register_buffer(buffer.ptr, size)
            assert code == 0, f"register_buffer({size}) = {code}"
        return buffer

    def drop(self, buffer, store=None):
        """Unregister and let go. The mapping itself lives until the last reference ends."""
        return (store or self.store).unregister_buffer(buffer.ptr)

    @staticmethod
    def unmapped(size=MiB):
        """An address that was mapped a moment ago and is not any more."""
        address = libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        libc.munmap(address, size)
        return address

    # ---- operations named by tests -------------------------------------------------------------
    def ping(self):
        return os.getpid()

    def drop_store(self, name="s"):
        self.stores.pop(name, None)
        gc.collect()

    def put_pattern(self, key, n, tag=None, config=None):
        value = P(key if tag is None else tag, n)
        return self.store.put(key, value, self.config(config)) if config else self.store.put(key, value)

    def put_many(self, prefix, count, n, config=None):
        """Put prefix+i = P(prefix+i, n) for i < count; the list of codes."""
        return [self.put_pattern(f"{prefix}{i}", n, config=config) for i in range(count)]

    def get_pattern(self, key, n, tag=None):
        return verdict(self.store.get(key), P(key if tag is None else tag, n))

    def get_many(self, prefix, count, n):
        return [self.get_pattern(f"{prefix}{i}", n) for i in range(count)]

    def put_from_pattern(self, key, n, tag=None, config=None):
        buffer = self.buf(n, fill=0)
        buffer.write(P(key if tag is None else tag, n))
        try:
            code = self.store.put_from(key, buffer.ptr, n, self.config(config)) if config \
                else self.store.put_from(key, buffer.ptr, n)
            assert buffer.red_ok(), "red zone overwritten by put_from"
            return code
        finally:
            self.drop(buffer)

    def get_into_pattern(self, key, n, tag=None):
        """(code, verdict); the verdict is 'untouched' when no byte of the destination changed."""
        buffer = self.buf(n)
        try:
            code = self.store.get_into(key, buffer.ptr, n)
            if code < 0 and buffer.red_ok() and buffer.all(FILL_BYTE):
                return code, "untouched"
            return code, buffer.verdict(P(key if tag is None else tag, n))
        finally:
            self.drop(buffer)

    def in_threads(self, count, name, *args):
        """Run op `name` count times at once; op gets the thread's number first. The list of results."""
        results = [None] * count

        def run(index):
            try:
                results[index] = getattr(self, name)(index, *args)
            except BaseException as error:  # the error is the result
                results[index] = f"{type(error).__name__}: {error}"
        threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def parallel(count, function):
    """function(i) on `count` threads at once; results in order, an exception as its text."""
    results = [None] * count

    def run(index):
        try:
            results[index] = function(index)
        except BaseException as error:
            results[index] = f"{type(error).__name__}: {error}"
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


GLOBALS = {"BLOCK": BLOCK, "Buffer": Buffer, "Config": Config, "MiB": MiB, "P": P, "P_blocks": P_blocks,
           "verdict": verdict, "parallel": parallel, "ctypes": ctypes, "gc": gc, "mmap": mmap, "os": os,
           "signal": signal, "socket": socket, "sys": sys, "threading": threading, "time": time, "libc": libc,
           "FILL_BYTE": FILL_BYTE, "RED": RED}


def plain(worker, value):
    """Requests carry Config objects instead of ReplicateConfig."""
    return worker.config(value) if isinstance(value, Config) else value


def execute(worker, kind, name, args, kwargs):
    if kind == "store":
        store = worker.get_store(kwargs.pop("_store", "s"))
        return getattr(store, name)(*[plain(worker, a) for a in args],
                                    **{k: plain(worker, v) for k, v in kwargs.items()})
    if kind == "op":
        return getattr(worker, name)(*args, **kwargs)
    source, function, filename, line = name
    code = compile("\n" * (line - 1) + source, filename, "exec")
    scope = dict(GLOBALS)
    exec(code, scope)
    return scope[function](worker, *args, **kwargs)


def serve(connection):
    worker = Worker()
    send_lock = threading.Lock()

    def answer(request_id, kind, name, args, kwargs):
        begin = time.monotonic()
        try:
            result, status = execute(worker, kind, name, args, kwargs), "ok"
        except BaseException as error:
            result, status = (type(error).__name__, str(error), traceback.format_exc()), "exc"
        seconds = time.monotonic() - begin
        with send_lock:
            try:
                connection.send((request_id, status, result, seconds))
            except (TypeError, AttributeError, ValueError) as error:  # a result that cannot be pickled
                connection.send((request_id, "exc", (type(error).__name__, f"unpicklable result: {error}", ""), seconds))
        if status == "exc" and result[0] in ("KeyboardInterrupt", "SystemExit"):
            sys.exit(130)

    while True:
        try:
            request_id, on_main, kind, name, args, kwargs = connection.recv()
        except EOFError:
            os._exit(0)
        if kind == "leave":
            connection.close()
            return
        if on_main:
            answer(request_id, kind, name, args, kwargs)
        else:
            threading.Thread(target=answer, args=(request_id, kind, name, args, kwargs), daemon=True).start()


if __name__ == "__main__":
    # A shell that starts pytest in the background makes its children ignore SIGINT; a user's process does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    serve(Connection(int(sys.argv[1])))
