#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cross-instance prefix reuse, without an engine: what `./dev run` shows.

Starts a master and a storage-only provider. Requester A stores the KV blocks of a prompt (Llama-3-8B
shapes: 32 layers of 64 KiB a block of 16 tokens), then ends. Requester B, another process with empty
buffers, asks which prefix of a longer prompt is stored, gets it, and compares every byte.

  prefix_reuse.py [--tokens 8192] [--layers 32] [--tcp]
"""
import argparse
import hashlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time

BLOCK_TOKENS = 16
LAYER_BYTES = 64 << 10
BATCH_KEYS = 64


class Area:
    """Page-aligned memory that stands in for an engine's KV cache: one region per layer."""

    def __init__(self, blocks, layers):
        import ctypes
        self.blocks, self.layers = blocks, layers
        self.memory = mmap.mmap(-1, blocks * layers * LAYER_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size = len(self.memory)
        ctypes.memset(self.address, 0, self.size)     # as an engine does at its start

    def offsets(self, block):
        return [(layer * self.blocks + block) * LAYER_BYTES for layer in range(self.layers)]

    def segments(self, block):
        return [self.address + offset for offset in self.offsets(block)]


def block_keys(tokens):
    """A chain, as engines make it: each key covers all tokens up to its block's end."""
    keys, digest = [], hashlib.sha256(b"seed")
    for first in range(0, len(tokens) - len(tokens) % BLOCK_TOKENS, BLOCK_TOKENS):
        digest.update(b"".join(t.to_bytes(4, "little") for t in tokens[first:first + BLOCK_TOKENS]))
        keys.append(f"demo-8b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{digest.hexdigest()}")
    return keys


def pattern(key, layer):
    """The block's bytes in one layer: no two differ by less than everything."""
    return hashlib.shake_128(f"{key}/{layer}".encode()).digest(1024) * (LAYER_BYTES // 1024)


def open_store(args):
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", args.master)
    if code != 0:
        raise SystemExit(f"setup returned {code}: {store.last_error()}")
    return store


def progress(what, done, total, begin):
    rate = done / max(time.perf_counter() - begin, 1e-9) / 1e9
    if sys.stdout.isatty() or done == total:
        end = "\n" if done == total else "\r"
        print(f"  {what}: {done >> 20} of {total >> 20} MiB, {rate:.2f} GB/s", end=end, flush=True)


def in_batches(area, keys, what, call):
    """Calls `call(keys, addresses, sizes)` per batch; returns the seconds spent inside it."""
    sizes, spent, begin = [[LAYER_BYTES] * area.layers], 0.0, time.perf_counter()
    block_bytes = area.layers * LAYER_BYTES
    for first in range(0, len(keys), BATCH_KEYS):
        some = keys[first:first + BATCH_KEYS]
        addresses = [area.segments(block) for block in range(first, first + len(some))]
        start = time.perf_counter()
        codes = call(some, addresses, sizes * len(some))
        spent += time.perf_counter() - start
        if any(code < 0 for code in codes):
            raise SystemExit(f"{what} failed with {sorted(set(c for c in codes if c < 0))}")
        progress(what, (first + len(some)) * block_bytes, len(keys) * block_bytes, begin)
    return spent


def requester_a(args):
    from mooncake.store import ReplicateConfig
    keys = block_keys(range(args.tokens))
    area, store, config = Area(len(keys), args.layers), open_store(args), ReplicateConfig()
    if store.register_buffer(area.address, area.size) != 0:
        raise SystemExit("register_buffer failed: " + store.last_error())
    for block, key in enumerate(keys):
        for layer, offset in enumerate(area.offsets(block)):
            area.memory[offset:offset + LAYER_BYTES] = pattern(key, layer)
    spent = in_batches(area, keys, "A puts", lambda k, a, s: store.batch_put_from_multi_buffers(k, a, s, config))
    print(f"  A stored {len(keys)} blocks of {args.tokens} tokens, {area.size / spent / 1e9:.2f} GB/s inside put")
    store.close()


def requester_b(args):
    keys = block_keys(list(range(args.tokens)) + [7] * 512)     # the same prompt, longer
    store = open_store(args)
    start = time.perf_counter()
    found = store.batch_is_exist(keys)
    asked = time.perf_counter() - start
    hits = next((n for n, there in enumerate(found) if there != 1), len(found))
    print(f"  B asked for {len(keys)} blocks in {asked * 1e3:.2f} ms: the longest stored prefix is {hits} blocks, "
          f"{hits * BLOCK_TOKENS} tokens")
    area = Area(hits, args.layers)
    if hits == 0 or store.register_buffer(area.address, area.size) != 0:
        raise SystemExit("nothing found, or register_buffer failed")
    spent = in_batches(area, keys[:hits], "B gets", store.batch_get_into_multi_buffers)
    wrong = sum(area.memory[offset:offset + LAYER_BYTES] != pattern(key, layer)
                for block, key in enumerate(keys[:hits]) for layer, offset in enumerate(area.offsets(block)))
    print(f"  B loaded {hits} blocks, {area.size / spent / 1e9:.2f} GB/s inside get; "
          f"{hits * args.layers - wrong} of {hits * args.layers} pieces verified")
    store.close()
    if wrong or hits != args.tokens // BLOCK_TOKENS:
        raise SystemExit("FAILED: wrong bytes or a short prefix")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(command, ready, log):
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60
    while ready not in open(log.name).read():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{' '.join(command)} did not start:\n" + open(log.name).read())
        time.sleep(0.05)
    return process


def stop(name, process):
    process.send_signal(signal.SIGTERM)
    code = process.wait(15)
    print(f"  {name} ended with exit code {code}")
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tcp", action="store_true", help="turn the shared mapping off: bytes go over TCP")
    parser.add_argument("--work", default=".", help="folder for the services' logs")
    parser.add_argument("--master", help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        return {"A": requester_a, "B": requester_b}[args.role](args)
    if args.tcp:
        os.environ["EGMSTORE_MAP"] = "0"
    need = args.tokens // BLOCK_TOKENS * args.layers * LAYER_BYTES
    args.master = f"127.0.0.1:{free_port()}"
    print("master and provider")
    with open(os.path.join(args.work, "master.log"), "w") as master_log, \
            open(os.path.join(args.work, "provider.log"), "w") as provider_log:
        begin = time.perf_counter()
        master = start(["egmstore", "master", "--port", args.master.split(":")[1], "--metrics-port", "0"], "serving",
                       master_log)
        provider = start(["egmstore", "provider", "--master", args.master, "--hostname", "127.0.0.1", "--memory", "shm",
                          "--size", str(need * 5 // 4 + (64 << 20))], "ready", provider_log)
        print(f"  both ready after {time.perf_counter() - begin:.1f} s")
        failed = False
        for role, what in (("A", "requester A: computes a prompt and stores its blocks"),
                           ("B", "requester B: another process, the same prompt and 512 more tokens")):
            print(what)
            command = [sys.executable, __file__, "--role", role, "--master", args.master, "--tokens", str(args.tokens),
                       "--layers", str(args.layers)]
            quiet = {"EGMSTORE_LOG": "warn"} | os.environ
            failed = failed or subprocess.run(command, env=quiet).returncode != 0
        print("shutdown: requesters are gone, then the provider, then the master")
        failed = stop("provider", provider) != 0 or failed
        failed = stop("master", master) != 0 or failed
    print("FAILED" if failed else "OK: the prefix computed by A was reused by B")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
