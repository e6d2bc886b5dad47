# SPDX-License-Identifier: Apache-2.0
"""S4 cases of contract/faults.md: results and API semantics. One test per case, named after its id."""
import time

import pytest

from harness.pattern import MiB, P


def test_B93_what_missing_looks_like_in_every_call(cluster):
    cluster.master()
    cluster.store("A")
    B = cluster.client("B")
    assert B.op("put_pattern", "k", 5000) == 0
    assert B.call("get", "m") == b""
    assert B.call("get_size", "m") == -704
    assert B.call("is_exist", "m") == 0
    assert B.call("remove", "m") == -704
    assert B.op("get_into_pattern", "m", 100) == (-704, "untouched")
    assert B.call("get_batch", ["k", "m"]) == [P("k", 5000), b""]
    assert B.call("batch_is_exist", ["k", "m"]) == [1, 0]

    def rest(w):
        s = w.store
        bufs = [w.buf(5000), w.buf(5000)]
        handles = s.batch_get_buffer(["k", "m"])
        return (s.get_buffer("m") is None, handles[1] is None, bytes(memoryview(handles[0])) == P("k", 5000),
                list(s.batch_get_into(["k", "m"], [b.ptr for b in bufs], [5000] * 2)),
                list(s.batch_get_into_multi_buffers(["m", "k"], [[bufs[1].ptr], [bufs[0].ptr]], [[5000], [5000]])),
                bufs[1].all(FILL_BYTE), len(s.get_replica_desc("m")), sorted(s.batch_get_replica_desc(["k", "m"])),
                list(s.batch_remove(["m", "m2"])), bufs[0].verdict(P("k", 5000)))
    assert B.do(rest) == (True, True, True, [5000, -704], [-704, 5000], True, 0, ["k"], [-704, -704], "ok")
    N = cluster.spawn("N")
    assert N.call("get_batch", ["k", "m"]) in ([b"", b""], [b""])
    assert len(N.call("batch_is_exist", ["k", "m", "n"])) == 3
    assert all(code < 0 for code in N.call("batch_is_exist", ["k", "m", "n"]))


@pytest.mark.watchdog(60)
def test_B94_second_put_remove_under_lease_remove_while_writing(cluster):
    cluster.master()
    A = cluster.store("A", segment=320 * MiB)
    B = cluster.client("B")
    assert B.op("put_pattern", "k", 5000, "v1") == 0
    assert B.op("put_pattern", "k", 6000, "v2") == 0
    assert B.op("get_pattern", "k", 5000, "v1") == "ok"
    assert B.call("remove", "k") == -706
    assert B.call("remove", "k", force=True) == 0
    assert B.call("is_exist", "k") == 0
    assert B.op("put_pattern", "k", 5000, "v1") == 0
    assert B.call("remove", "k") == 0  # never read: no lease
    assert B.op("put_pattern", "k", 5000, "v1") == 0
    assert B.call("upsert", "k", P("v3", 7000)) == 0
    assert B.op("get_pattern", "k", 7000, "v3") == "ok"
    assert A.op("get_pattern", "k", 7000, "v3") == "ok"
    assert B.op("put_pattern", "e", 100) == 0
    assert B.call("is_exist", "e") == 1
    assert B.call("remove", "e") == -706
    time.sleep(0.7)
    assert B.call("remove", "e") == 0

    def prepare(w, n):
        w.kept["src"] = w.buf(n, fill=0x22)

    def write(w, key, n):
        return w.store.put_from(key, w.kept["src"].ptr, n)
    W = cluster.client("W")
    W.do(prepare, 256 * MiB)
    codes = set()
    for i in range(5):
        call = W.start_do(write, f"w{i}", 256 * MiB)
        time.sleep(0.005 + 0.005 * i)
        W.stop()
        code = B.call("remove", f"w{i}", force=True)
        exists = B.call("is_exist", f"w{i}")
        W.cont()
        put = call.result()
        codes.add(code)
        assert code in (-703, -704, 0), code
        if code != 0:  # removed nothing, so the write must come through
            assert exists == 0 and put == 0 and B.call("is_exist", f"w{i}") == 1
        B.call("remove", f"w{i}", force=True)
    assert codes & {-703, -704}, "no put was caught in its middle"


def test_B95_zero_length_values(cluster):
    """Our rule: a value of length 0 is refused with -600 by every form and nothing is stored (upstream answers 0 for
    put_parts() and put_from(size 0) without storing; 0 together with exist 0 is what must not be)."""
    cluster.master()
    A = cluster.store("A")

    def run(w):
        s, b = w.store, w.buf(4096)
        out = {"put": s.put("put", b""), "put_parts": s.put_parts("put_parts"),
               "put_parts2": s.put_parts("put_parts2", b"", b""), "put_from": s.put_from("put_from", b.ptr, 0),
               "put_batch": s.put_batch(["put_batch"], [b""]),
               "batch_put_from": s.batch_put_from(["batch_put_from"], [b.ptr], [0])[0],
               "multi": s.batch_put_from_multi_buffers(["multi"], [[b.ptr, b.ptr]], [[0, 0]])[0],
               "multi_none": s.batch_put_from_multi_buffers(["multi_none"], [[]], [[]])[0],
               "upsert": s.upsert("upsert", b""), "upsert_parts": s.upsert_parts("upsert_parts"),
               "upsert_from": s.upsert_from("upsert_from", b.ptr, 0),
               "upsert_batch": s.upsert_batch(["upsert_batch"], [b""]),
               "batch_upsert_from": s.batch_upsert_from(["batch_upsert_from"], [b.ptr], [0])[0]}
        exist = {name: s.is_exist(name) for name in out}
        mixed = s.put_parts("mixed", b"a", b"", b"b"), s.get("mixed")
        segments = s.batch_put_from_multi_buffers(["seg"], [[b.ptr, b.ptr, b.ptr + 1]], [[1, 0, 2]])[0], s.get_size("seg")
        batch = s.put_batch(["good1", "empty", "good2"], [b"x", b"", b"y"]), list(s.batch_is_exist(["good1", "empty", "good2"]))
        s.put("old", b"old")
        swap = s.upsert("old", b""), s.get("old")
        return out, exist, mixed, segments, batch, swap
    out, exist, mixed, segments, batch, swap = A.do(run)
    assert set(exist.values()) == {0}, exist
    assert set(out.values()) == {-600}, out
    assert mixed == (0, b"ab")
    assert segments == (0, 3)
    assert batch[0] < 0 and batch[1][1] == 0
    assert swap == (-600, b"old")


def test_B96_partial_failure_in_batches(cluster):
    cluster.master()
    cluster.store("A")
    B = cluster.client("B")
    n, n2 = 50_000, 70_000
    assert B.op("put_pattern", "ok", n) == 0
    assert B.op("put_pattern", "ok2", n2) == 0

    def run(w, n, n2):
        s, out = w.store, {}
        bufs = [w.buf(n), w.buf(n), w.buf(n - 1), w.buf(n, register=False), w.buf(n2)]
        sizes = [n, n, n - 1, n, n2]
        keys = ["ok", "missing", "ok", "ok", "ok2"]
        out["get"] = list(s.batch_get_into(keys, [b.ptr for b in bufs], sizes))
        out["get same"] = [bufs[0].same(P("ok", n)), bufs[4].same(P("ok2", n2))]
        out["untouched"] = [b.all(FILL_BYTE) for b in bufs[1:4]]
        out["red"] = all(b.red_ok() for b in bufs)
        for b in bufs:
            b.fill(FILL_BYTE)
        out["multi"] = list(s.batch_get_into_multi_buffers(
            keys, [[b.ptr, b.ptr + 1000] for b in bufs], [[1000, size - 1000] for size in sizes]))
        out["multi same"] = [bufs[0].same(P("ok", n)), bufs[4].same(P("ok2", n2))]
        out["multi untouched"] = [b.all(FILL_BYTE) for b in bufs[1:4]]
        src = w.buf(4096)
        src.write(P("src", 4096))
        hole = w.unmapped(MiB)
        out["put"] = list(s.batch_put_from(["new", "ok", "zero", "bad", "new2"], [src.ptr, src.ptr, src.ptr, hole, src.ptr + 96],
                                           [4096, 4096, 0, 4096, 4000]))
        out["values"] = [s.get("new") == P("src", 4096), s.get("ok") == P("ok", n), s.get("new2") == P("src", 4096)[96:]]
        out["exist"] = list(s.batch_is_exist(["zero", "bad"]))
        out["lengths"] = [list(s.batch_put_from(["a", "b"], [src.ptr], [10, 10])), list(s.batch_get_into(["ok"], [], [])),
                          list(s.batch_get_into_multi_buffers(["ok", "ok2"], [[src.ptr]], [[1], [2]])),
                          list(s.batch_put_from_multi_buffers(["c", "d"], [[src.ptr], [src.ptr]], [[1]]))]
        out["empty"] = [list(s.batch_is_exist([])), list(s.batch_put_from([], [], [])), list(s.batch_get_into([], [], [])),
                        list(s.batch_get_into_multi_buffers([], [], [])), list(s.batch_put_from_multi_buffers([], [], []))]
        return out
    out = B.do(run, n, n2)
    assert out["get"] == [n, -704, -600, -600, n2]
    assert out["get same"] == [True, True] and out["untouched"] == [True] * 3 and out["red"]
    assert out["multi"] == [n, -704, -600, -600, n2]
    assert out["multi same"] == [True, True] and out["multi untouched"] == [True] * 3
    assert out["put"][:3] == [0, 0, -600] and out["put"][3] < 0 and out["put"][4] == 0
    assert out["values"] == [True] * 3 and out["exist"] == [0, 0]
    assert out["lengths"] == [[-600] * 2, [-600], [-600] * 2, [-600] * 2]
    assert out["empty"] == [[]] * 5


def test_B102_buffer_kinds_in_python(cluster1):
    """Host buffers of every kind. Left out: tensors (put_tensor and its relatives are not built yet); numpy is used
    when the worker's interpreter has it."""
    cluster1.master()
    A = cluster1.store("A")

    def run(w):
        import array
        s, raw, out, refused = w.store, P("kinds", 4096), {}, {}
        kinds = {"bytes": raw, "bytearray": bytearray(raw), "memoryview": memoryview(raw), "view of part": memoryview(raw)[10:2000],
                 "array": array.array("f", raw), "ctypes": (ctypes.c_ubyte * 4096).from_buffer_copy(raw),
                 "2-D view": memoryview(raw).cast("B", (64, 64)), "double view": memoryview(raw).cast("d")}
        bad = {"strided": memoryview(raw)[::2], "reverse": memoryview(raw)[::-1]}
        try:
            import numpy
            kinds.update({"u1": numpy.frombuffer(raw, "u1"), "f32": numpy.frombuffer(raw, "<f4"),
                          "2-D": numpy.frombuffer(raw, "u1").reshape(64, 64)})
            bad.update({"numpy strided": numpy.frombuffer(raw, "u1")[::2],
                        "fortran": numpy.asfortranarray(numpy.frombuffer(raw, "u1").reshape(64, 64))})
        except ImportError:
            pass
        for name, value in kinds.items():
            code = s.put(name, value)
            out[name] = (code, s.get(name) == (value.tobytes() if hasattr(value, "tobytes") else bytes(value)))
        for name, value in list(bad.items()) + [("str", "text"), ("None", None), ("int", 5), ("list", [1, 2])]:
            try:
                refused[name] = s.put(name, value)
            except (TypeError, BufferError, RuntimeError, ValueError) as error:
                refused[name] = type(error).__name__
            if s.is_exist(name):
                refused[name] = "stored"
        parts = s.put_parts("parts", b"ab", bytearray(b"cd"), memoryview(b"efgh")[1:3]), s.get("parts")
        keyword = None
        try:
            s.put("kw", b"x", bad_kw=1)
        except TypeError:
            keyword = "TypeError"
        # The source may be dropped or grown right after the call.
        big = bytearray(P("big", MiB))
        code = s.put("big", big)
        big.extend(b"x")
        big[:100] = bytes(100)
        return out, refused, parts, keyword, (code, s.get("big") == P("big", MiB))
    out, refused, parts, keyword, big = A.do(run)
    assert {name: seen for name, seen in out.items() if seen != (0, True)} == {}
    for name, seen in refused.items():
        if name in ("str", "None", "int", "list"):
            assert seen == "TypeError", (name, seen)
        else:
            assert isinstance(seen, str) and seen != "stored" or seen == -600, (name, seen)
    assert parts == (0, b"abcdfg")
    assert keyword == "TypeError"
    assert big == (0, True)
