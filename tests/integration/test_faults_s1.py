# SPDX-License-Identifier: Apache-2.0
"""S1 cases of contract/faults.md: data corruption or loss.

One test per case, named after its id; the case's own text says symptom and cause.  Where the owner of the
memory is not in the data path (mover `map`) the slow side is the reader or writer itself, stopped in the middle
of its copy; over `tcp` the owner is stopped as well.  Not here: B10, B16-B19, B34 (snapshot, SSD tier, hot cache
do not exist yet), B26, B27 (need the simulated CUDA driver).
"""
import os
import random
import threading
import time

import pytest

from harness.cluster import wait_for
from harness.net import free_port, listen_ports, send_raw
from harness.pattern import MiB

KiB = 1024


def free_memory():
    with open("/proc/meminfo") as info:
        for line in info:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return 0


@pytest.mark.watchdog(60, long=180)
def test_B01_write_reported_done_before_receiver_stored_it(cluster, long):
    """A value is read by its owner at the very moment at which the writer's put has answered 0."""
    rounds, size = (400 if long else 60), 2_400_000
    master = cluster.master()
    A = cluster.store("A", segment=256 * MiB)
    B = cluster.client("B", local=64 * MiB)

    def noise(w, stop_after):
        w.kept["stop"] = False

        def write(index):
            value, n = os.urandom(700_000), 0
            end = time.monotonic() + stop_after
            while not w.kept["stop"] and time.monotonic() < end:
                w.store.put(f"noise{index}-{n}", value)
                w.store.remove(f"noise{index}-{n}", True)  # else it fills the pool every 50 ms, and unread values go by rights
                n += 1
            return n
        return parallel(3, write)
    noisy = B.start_do(noise, 50)
    bad = []
    for i in range(rounds):
        key = f"b01-{i}"
        code = B.op("put_pattern", key, size) if i % 2 else B.op("put_from_pattern", key, size)
        if code != 0:
            bad.append((i, "put", code))
            continue
        seen = A.op("get_pattern", key, size)
        if seen != "ok":
            bad.append((i, "get", seen))

    def silence(w):
        w.kept["stop"] = True
    B.do(silence)
    assert min(noisy.result(60)) > 0
    assert bad == []
    assert long or master.metric("master_evicted_key_count") == 0, "an absent value would be no news"


@pytest.mark.watchdog(75, long=400)
def test_B02_slow_get_outlives_its_lease(cluster, long):
    """The reader (and over tcp in every other round the owner) sleeps in the middle of a 64 MiB get while others
    force the object out. Exact bytes or a negative code, nothing else."""
    rounds, size, stop_s = (50 if long else 8), 64 * MiB, 1.5
    cluster.master()
    A = cluster.store("A", segment=96 * MiB, local=80 * MiB)
    B = cluster.client("B")
    W = cluster.client("W")

    def prepare(w, n):
        w.kept["dst"] = w.buf(n)

    def read(w, key, n):
        dst = w.kept["dst"]
        dst.fill(0xEE)
        begin = time.monotonic()
        code = w.store.get_into(key, dst.ptr, n)
        took = time.monotonic() - begin
        return code, took, dst.verdict(P("b02", n))

    def push(w, tag, seconds):
        """Put until the time is over; how many were stored."""
        end, stored, n = time.monotonic() + seconds, 0, 0
        while time.monotonic() < end:
            stored += w.store.put(f"push-{tag}-{n}", P("push", 8 * MiB)) == 0
            n += 1
        return stored
    B.do(prepare, size)
    rng, slow, wrong, pushed, warm = random.Random(2), 0, [], 0, None
    for i in range(rounds):
        key = f"b02-{i}"

        def stored():
            return A.op("put_pattern", key, size, "b02") == 0
        wait_for(stored, 15, "room for the 64 MiB object", 0.2)
        warm = warm or B.do(read, key, size)[1]
        victims = [A] if cluster.mover == "tcp" and i % 2 else [B]
        call = B.start_do(read, key, size)
        time.sleep(0.002 + warm * rng.uniform(0.1, 0.8))
        for victim in victims:
            victim.stop()
        pusher = W.start_do(push, i, stop_s)
        time.sleep(stop_s)
        for victim in victims:
            victim.cont()
        code, took, seen = call.result()
        pushed += pusher.result()
        slow += took > 0.8 * stop_s
        if code >= 0 and (code != size or seen != "ok"):
            wrong.append((i, code, seen))
        A.call("remove", key, force=True)
        A.call("remove_by_regex", "^push-", force=True)
    assert wrong == []
    assert slow > 0, "no round stopped a get in its middle: the test proved nothing"
    assert pushed > 0


def test_B04_duplicate_keys_in_one_batch_read(cluster):
    cluster.master()
    cluster.store("A")
    B = cluster.client("B")
    assert B.op("put_pattern", "k", MiB) == 0
    assert B.op("put_pattern", "j", 777) == 0

    def read(w):
        values = w.store.get_batch(["k", "k", "j", "k"])
        expect = [P("k", MiB), P("k", MiB), P("j", 777), P("k", MiB)]
        handles = w.store.batch_get_buffer(["k", "j", "k"])
        bufs = [w.buf(MiB) for _ in range(3)]
        codes = w.store.batch_get_into(["k"] * 3, [b.ptr for b in bufs], [MiB] * 3)
        multi = [w.buf(MiB) for _ in range(2)]
        multi_codes = w.store.batch_get_into_multi_buffers(
            ["k", "k"], [[b.ptr, b.ptr + 1000] for b in multi], [[1000, MiB - 1000]] * 2)
        return ([verdict(v, e) for v, e in zip(values, expect)], len(values), list(codes),
                [b.verdict(P("k", MiB)) for b in bufs], list(multi_codes), [b.verdict(P("k", MiB)) for b in multi],
                [verdict(bytes(memoryview(h)), P(k, n)) for h, k, n in zip(handles, "kjk", (MiB, 777, MiB))])
    texts, length, codes, into, multi_codes, multi, handles = B.do(read)
    assert (texts, length) == (["ok"] * 4, 4)
    assert (codes, into) == ([MiB] * 3, ["ok"] * 3)
    assert (multi_codes, multi) == ([MiB] * 2, ["ok"] * 2)
    assert handles == ["ok"] * 3


@pytest.mark.parametrize("memcpy", [None, "0", "1"])
def test_B05_other_process_on_same_host_taken_for_local(cluster, memcpy):
    """Two embedded providers with the same host name and IP; objects of each read by the other."""
    env = {} if memcpy is None else {"MC_STORE_MEMCPY": memcpy}
    cluster.master()
    A = cluster.store("A", env=env)
    B = cluster.store("B", env=env)
    assert A.hostname != B.hostname
    assert A.op("put_many", "a", 100, 50_000, {"preferred_segment": A.hostname}) == [0] * 100
    assert B.op("put_many", "b", 100, 50_000, {"preferred_segment": B.hostname}) == [0] * 100
    assert B.op("get_many", "a", 100, 50_000) == ["ok"] * 100
    assert A.op("get_many", "b", 100, 50_000) == ["ok"] * 100
    assert A.op("get_into_pattern", "b7", 50_000) == (50_000, "ok")
    for proc in (A, B):
        assert proc.call("close") == 0
        proc.leave()
        assert proc.wait(10) == 0


@pytest.mark.watchdog(60)
def test_B06_restarted_peer_on_same_host_and_port(cluster):
    """A dies and comes back under the same name within the client ttl; nothing of the old life may be used."""
    cluster.master()
    name = f"127.0.0.1:{free_port()}"
    A = cluster.store("A", segment=16 * MiB, hostname=name)
    B = cluster.client("B")
    assert A.op("put_many", "old", 8, 700_000) == [0] * 8
    assert B.op("get_many", "old", 8, 700_000) == ["ok"] * 8
    A.kill()
    A2 = cluster.spawn("A2")

    def setup_again():
        return cluster.start_setup(A2, 16 * MiB, 16 * MiB, name).result(30) == 0
    wait_for(setup_again, 12, "second life set up", 0.3)
    # Until the master has judged the old life, a put may be sent there and fail; it must not succeed there.
    for i in range(4):
        wait_for(lambda: A2.op("put_pattern", f"guard{i}", 500_000) == 0, 10, "guard object stored", 0.2)
    seen = [B.op("get_pattern", f"old{i}", 700_000) for i in range(8)]
    into = [B.op("get_into_pattern", f"old{i}", 700_000) for i in range(8)]
    assert set(seen) <= {"empty"}, seen  # the old segment was memory of a process that is gone
    assert all(code < 0 for code, _ in into), into
    codes = B.op("put_many", "new", 4, 500_000)
    assert all(code <= 0 for code in codes)
    wait_for(lambda: B.op("get_many", "guard", 4, 500_000) == ["ok"] * 4, 10, "guard objects readable")
    for i, code in enumerate(codes):
        if code == 0:
            assert B.op("get_pattern", f"new{i}", 500_000) in ("ok", "empty")
    assert A2.op("get_many", "guard", 4, 500_000) == ["ok"] * 4


@pytest.mark.watchdog(60)
def test_B11_crash_between_put_start_and_end(cluster):
    """The writer is stopped in the middle of a 256 MiB put and killed; the key and the space come back."""
    size = 256 * MiB
    master = cluster.master(put_start_discard_timeout_sec=3)
    A = cluster.store("A", segment=600 * MiB)
    B = cluster.client("B")
    for attempt in range(6):
        W = cluster.client(f"W{attempt}")
        key = f"b11-{attempt}"

        def prepare(w, n):
            w.kept["src"] = w.buf(n, fill=0x11)

        def write(w, key, n):
            return w.store.put_from(key, w.kept["src"].ptr, n)
        W.do(prepare, size)
        W.start_do(write, key, size)
        time.sleep(0.004 + 0.006 * attempt)
        W.stop()
        if cluster.mover == "tcp":
            A.stop()
        if B.call("is_exist", key) == 0:
            W.kill()
            if cluster.mover == "tcp":
                A.cont()
            begin = time.monotonic()
            assert B.call("is_exist", key) == 0
            assert B.call("get", key) == b""
            break
        W.kill()
        A.cont()
        B.call("remove", key, force=True)
    else:
        pytest.fail("no attempt caught the writer between start and end")

    def put_again():
        # Upstream's put of a key in progress answers 0 without storing; only a readable value counts.
        return B.op("put_pattern", key, MiB) == 0 and B.op("get_pattern", key, MiB) == "ok"
    wait_for(put_again, 8 - (time.monotonic() - begin), "put of the dead writer's key", 0.2)

    def space_back():
        return MiB <= (master.metric("master_allocated_bytes") or 0) <= 1.1 * MiB
    wait_for(space_back, 12, "space of the dead writer")
    # A put of the same size must fit again, and again: the extents are free and not only uncounted.
    for i in range(2):
        assert B.op("put_from_pattern", f"again{i}", size, "w") == 0


@pytest.mark.watchdog(60)
def test_B13_concurrent_put_of_one_key(cluster):
    master = cluster.master()
    cluster.store("A", segment=256 * MiB)
    writers = [cluster.client(f"W{p}", local=32 * MiB) for p in (1, 2)]

    def put_at(w, when, key, byte):
        value = bytes([byte]) * (4 * MiB)
        while time.time() < when:
            pass
        return w.store.put(key, value)

    def read(w, key):
        value = w.store.get(key)
        return len(value), sorted(set(value[::4097]) | set(value[:4096])) if value else [], value.count(value[:1]) if value else 0
    for i in range(20):
        when = time.time() + 0.03
        calls = [w.start_do(put_at, when, f"k{i}", p) for p, w in zip((1, 2), writers)]
        codes = [c.result() for c in calls]
        assert all(code <= 0 for code in codes) and 0 in codes
        assert writers[i % 2].call("is_exist", f"k{i}") == 1
        for w in writers:
            length, values, count = w.do(read, f"k{i}")
            assert length == 4 * MiB and values in ([1], [2]) and count == length
    assert master.alive
    assert not any(word in master.text() for word in ("Check failed", "assert", "SIGABRT"))


@pytest.mark.watchdog(120, long=300)
def test_B14_lengths_above_2_and_4_gib(cluster, long):
    """One buffer serves as source and destination, so that the test needs twice the value's size in memory."""
    n = 2**32 + 17 if long else 2**31 + 1
    if free_memory() < 2 * n + (2 << 30):
        pytest.skip(f"needs {2 * n >> 30} GiB of free memory")
    cluster.master()
    cluster.store("A", segment=n + 64 * MiB)
    B = cluster.client("B")

    def run(w, n):
        buffer = w.buf(n, fill=0)
        buffer.write_huge("b14", n)
        marks = [at for at in (0, 2**31 - 32768, 2**32 - 32768) if at + 65536 <= n] + [n - 4096]
        spots = [(at, buffer.bytes(at, 65536 if at + 65536 <= n else n - at)) for at in marks]
        put = w.store.put_from("big", buffer.ptr, n)
        size = w.store.get_size("big")

        def blank():
            for at, data in spots:
                buffer.fill(0xEE, at, len(data))
        blank()
        short = w.store.get_into("big", buffer.ptr, n - 1)
        untouched = all(buffer.all(0xEE, at, len(data)) for at, data in spots)
        got = w.store.get_into("big", buffer.ptr, n)
        first = [buffer.same(data, at) for at, data in spots]
        buffer.fill(0)
        batch = w.store.batch_get_into(["big"], [buffer.ptr], [n])
        offset, whole = 0, True
        for block in P_blocks("b14", n):
            whole = whole and buffer.same(block, offset)
            offset += len(block)
        return put, size, short, untouched, got, first, list(batch), whole, buffer.red_ok()
    put, size, short, untouched, got, first, batch, whole, red = B.do(run, n, limit=280)
    assert (put, size, got, batch) == (0, n, n, [n])
    assert short < 0 and untouched
    assert all(first) and whole and red


def shared_files(proc, at_least):
    """Shared mappings of the process that could be its pool: (path as shown, /proc path to open)."""
    found = {}
    for line in proc.maps():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][3] == "s" and ("/dev/shm/" in fields[5] or "memfd:" in fields[5] or "egm" in fields[5]):
            low, high = (int(x, 16) for x in fields[0].split("-"))
            if high - low >= at_least:
                found[fields[5]] = f"/proc/{proc.pid}/map_files/{fields[0]}"
    return found


def test_B22_shm_backing_file_missing_short_or_wrong(cluster1):
    """A consumer that attaches after the producer's object was unlinked, cut short or replaced: exact bytes or a
    clean refusal, no SIGBUS. Left out: making the producer meet a name that exists (no hook to force the name)."""
    cluster1.master()
    A = cluster1.store("A", segment=48 * MiB)
    assert A.op("put_many", "k", 20, MiB) == [0] * 20
    pools = shared_files(A, 32 * MiB)

    def careful(w):
        results = [w.get_pattern(f"k{i}", MiB) for i in range(20)]
        code, seen = w.get_into_pattern("k3", MiB)
        return results, code, seen
    for shown in pools:
        path = shown.split(" (deleted)")[0]
        if path.startswith("/") and not path.startswith("/memfd") and os.path.exists(path):
            size = os.path.getsize(path)
            os.rename(path, path + ".moved")
            with open(path, "wb") as fake:
                fake.truncate(size)
    B = cluster1.client("B")
    results, code, seen = B.do(careful)
    assert set(results) <= {"ok", "empty"}, "a file of zeros took the pool's place"
    assert (code == MiB and seen == "ok") or (code < 0 and seen == "untouched")
    for shown in pools:
        path = shown.split(" (deleted)")[0]
        if os.path.exists(path + ".moved"):
            os.replace(path + ".moved", path)
            os.unlink(path)
    C = cluster1.client("C")
    results, code, seen = C.do(careful)
    assert set(results) <= {"ok", "empty"}
    # Last, because it may cost the owner its pool: a sealed pool refuses the truncation, and must if it can be reached.
    cut = 0
    for handle in pools.values():
        try:
            fd = os.open(handle, os.O_RDWR)
        except OSError:
            continue
        try:
            os.ftruncate(fd, 4096)
            cut += 1
        except OSError:
            pass
        finally:
            os.close(fd)
    D = cluster1.client("D")
    results, code, seen = D.do(careful)
    assert D.alive and B.alive and C.alive
    assert set(results) <= {"ok", "empty"}
    if not cut:
        assert results == ["ok"] * 20, "the pool could not be cut, so every object must still be there"


DEADLINE_ENV = {"EGMSTORE_DEADLINE": "2500ms", "EGMSTORE_DEADLINE_MS": "2500", "EGMSTORE_CALL_DEADLINE_MS": "2500",
                "EGMSTORE_CALL_TIMEOUT_MS": "2500", "MC_TRANSFER_TIMEOUT": "3", "MC_RPC_TIMEOUT_MS": "2500"}


@pytest.mark.watchdog(150, long=500)
@pytest.mark.parametrize("peer", ["owner", "master"])
def test_B25_error_returned_while_transfer_still_touches_the_buffer(cluster, long, peer):
    """The peer sleeps past the call's deadline. After the error the buffer belongs to the caller for good."""
    rounds, size = (10 if long else 2), 64 * MiB
    master = cluster.master()
    A = cluster.store("A", segment=320 * MiB, local=80 * MiB)
    B = cluster.client("B", env=DEADLINE_ENV)
    victim = A if peer == "owner" else master
    assert A.op("put_pattern", "k", size, "b25") == 0
    assert B.op("get_into_pattern", "k", size, "b25") == (size, "ok")

    def prepare(w, n):
        w.kept["buffer"] = w.buf(n)

    def read(w, n, unregister):
        buffer = w.kept["buffer"]
        buffer.fill(0xEE)
        code = w.store.get_into("k", buffer.ptr, n)
        seen = buffer.verdict(P("b25", n)) if code >= 0 else None
        buffer.fill(0x5A)
        if unregister:
            w.store.unregister_buffer(buffer.ptr)
        return code, seen

    def write(w, key, n):
        buffer = w.kept["buffer"]
        buffer.write(P(key, n))
        code = w.store.put_from(key, buffer.ptr, n)
        buffer.fill(0x5A)
        return code

    def still(w, n, register):
        ok = w.kept["buffer"].all(0x5A) and w.kept["buffer"].red_ok()
        if register:
            w.store.register_buffer(w.kept["buffer"].ptr, n)
        return ok
    B.do(prepare, size)
    failed = 0
    for i in range(rounds):
        unregister = bool(i % 2)
        call = B.start_do(read, size, unregister)
        time.sleep(0.003 * (i + 1))
        victim.stop()
        code, seen = call.result(40)
        victim.cont()
        time.sleep(5 if long else 1.5)
        assert (code == size and seen == "ok") or code < 0, (code, seen)
        failed += code < 0
        assert B.do(still, size, unregister), "the destination was written after get_into had returned"
        wait_for(lambda: B.op("get_into_pattern", "k", size, "b25") == (size, "ok") or not A.alive, 20, "store usable again", 0.5)

        key = f"w{i}"
        call = B.start_do(write, key, size)
        time.sleep(0.003 * (i + 1))
        victim.stop()
        code = call.result(40)
        failed += code < 0
        victim.cont()
        time.sleep(5 if long else 1.5)
        seen = A.op("get_pattern", key, size)
        assert seen in (("ok",) if code == 0 else ("ok", "empty")), (code, seen)
        A.call("remove", key, force=True)
    if peer == "master" or cluster.mover == "tcp":
        assert failed > 0, "no call met its deadline: the test proved nothing"


def test_B30_failed_registration_treated_as_success(cluster):
    """Host part of the case. Left out: an error injected into the driver (needs the simulated driver), and the
    registration of a batch (mooncake.store has none)."""
    cluster.master()
    cluster.store("A")
    B = cluster.client("B")

    def run(w):
        s = w.store
        hole = w.unmapped(MiB)
        registered = [s.register_buffer(0, 4096), s.register_buffer(hole, 0), s.register_buffer(hole, MiB),
                      s.register_buffer(2**64 - 4096, 8192)]
        puts = [s.put_from("hole", hole, MiB), s.put_from("null", 0, 4096), s.put_from("wrap", 2**64 - 4096, 8192)]
        w.put_pattern("there", MiB)
        gets = [s.get_into("there", hole, MiB), s.get_into("there", 0, MiB)]
        plain = Buffer(MiB)
        plain.write(P("plain", MiB))
        unregistered_put = s.put_from("plain", plain.ptr, MiB)
        plain_exists = s.is_exist("plain")
        target = Buffer(MiB)
        unregistered_get = s.get_into("there", target.ptr, MiB)
        good = [w.buf(64 * 1024), w.buf(64 * 1024)]
        batch = s.batch_put_from(["ok1", "bad", "ok2"], [good[0].ptr, hole, good[1].ptr], [65536] * 3)
        # A buffer whose part only is mapped: nothing of it may stay registered.
        half = libc.mmap(None, 2 * MiB, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        libc.munmap(half + MiB, MiB)
        half_code = s.register_buffer(half, 2 * MiB)
        half_put = s.put_from("half", half, MiB) if half_code != 0 else -1
        return {"registered": registered, "puts": puts, "gets": gets, "batch": list(batch),
                "exist": list(s.batch_is_exist(["hole", "null", "wrap", "bad", "half"])),
                "unregistered": (unregistered_put, plain_exists, unregistered_get, target.all(FILL_BYTE)),
                "ok": list(s.batch_is_exist(["ok1", "ok2"])), "half": (half_code, half_put)}
    seen = B.do(run)
    assert all(code != 0 for code in seen["registered"]), seen["registered"]
    assert all(code < 0 for code in seen["puts"]) and all(code < 0 for code in seen["gets"])
    assert seen["exist"] == [0] * 5
    assert seen["batch"][0] == 0 and seen["batch"][1] < 0 and seen["batch"][2] == 0
    assert seen["ok"] == [1, 1]
    assert seen["unregistered"] == (-600, 0, -600, True), "our rule: refused before any byte moves"
    assert seen["half"][0] != 0 and seen["half"][1] < 0
    assert B.alive


@pytest.mark.watchdog(90)
def test_B31_data_port_accepts_any_address_and_length(cluster):
    """Raw bytes on every TCP port of an owner process: the request forms of the upstream data protocol with hostile
    addresses and lengths, random frames, and genuine-looking prefixes. The canary must never come back."""
    cluster.master()
    A = cluster.store("A")
    B = cluster.client("B")
    canary = b"EGM-CANARY-" + os.urandom(16)

    def plant(w, canary):
        w.kept["canary"] = Buffer(65536)
        w.kept["canary"].write(canary * 100)
        w.kept["keys"] = w.put_many("k", 10, 100_000)
        libc_address = ctypes.cast(libc.memcpy, ctypes.c_void_p).value
        return w.kept["canary"].ptr, libc_address, w.kept["keys"]
    address, libc_address, codes = A.do(plant, canary)
    assert codes == [0] * 10
    ports = listen_ports(A.pid)
    bases = [int(line.split("-")[0], 16) for line in A.maps() if " rw-s " in line] or [address]
    frames = []
    for opcode in (0, 1, 0x80, 0x81):
        for base in bases[:3]:
            cases = [(16, address), (4096, libc_address), (8, 0), (1, base - 1), (16, base + 64 * MiB - 8),
                     (32, 2**64 - 16), (0, base), (2**63, base), (2**64 - 1, base), (65536, address)]
            for size, where in cases:
                frames.append(size.to_bytes(8, "little") + where.to_bytes(8, "little") + bytes([opcode]) + bytes(7))
    rng = random.Random(31)
    frames += [rng.randbytes(rng.randrange(1, 400)) for _ in range(60)]
    hung = []
    for port in ports:
        results = [None] * len(frames)

        def probe(start):
            for i in range(start, len(frames), 16):
                results[i] = send_raw(port, frames[i], limit=12.0, read=65536)
        threads = [threading.Thread(target=probe, args=(s,)) for s in range(16)]
        for thread in threads:
            thread.start()
        assert B.op("get_many", "k", 10, 100_000) == ["ok"] * 10
        for thread in threads:
            thread.join()
        assert not any(r and canary[:16] in r[1] for r in results), "memory outside the pool was echoed"
        hung += [(port, frames[i][:24].hex()) for i, r in enumerate(results) if r and r[0] == "silent"]
    assert A.alive and B.alive
    assert hung == [], "a hostile frame was neither answered nor closed within 12 s"
    assert B.op("get_many", "k", 10, 100_000) == ["ok"] * 10

    def intact(w, canary):
        return w.kept["canary"].same(canary * 100) and w.kept["canary"].red_ok()
    assert A.do(intact, canary)
