# SPDX-License-Identifier: Apache-2.0
"""Contract of every method of MooncakeDistributedStore that the first slice serves (contract/mooncake-api.md §§1.2-1.7).

Three parts: what each method does on a healthy store; the names and values of the small classes; and every method
in every sad state (before set-up, after close, closed by another thread meanwhile, after fork, master gone, owner
gone).  In a sad state a method answers in bounded time with codes of the right shape, or raises; it never crashes
the process and never answers [] to a list that was not empty.
"""
import time

import pytest

from harness.cluster import wait_for
from harness.net import free_port
from harness.pattern import MiB, Config, P

ENUMS = {
    "ObjectDataType": dict(UNKNOWN=0, KVCACHE=1, TENSOR=2, WEIGHT=3, SAMPLE=4, ACTIVATION=5, GRADIENT=6, OPTIMIZER_STATE=7,
                           METADATA=8, GENERAL=9),
    "SoftPinAction": dict(PRESERVE=0, ENABLE=1, DISABLE=2),
    "ReplicaStatus": dict(UNDEFINED=0, INITIALIZED=1, PROCESSING=2, COMPLETE=3, REMOVED=4, FAILED=5),
    "TaskType": dict(REPLICA_COPY=0, REPLICA_MOVE=1),
}
EXPORTED = ("KVCACHE", "TENSOR", "WEIGHT", "GENERAL", "COMPLETE", "INITIALIZED")


# ---- small classes ---------------------------------------------------------------------------------

def test_enums_have_upstream_names_and_values(cluster1):
    def run(w, enums, exported):
        import mooncake.store as m
        seen = {}
        for name, values in enums.items():
            kind = getattr(m, name, None)
            seen[name] = {v: int(getattr(kind, v)) for v in values if hasattr(kind, v)}
        return seen, [name for name in exported if not hasattr(m, name)]
    seen, missing = cluster1.spawn("A").do(run, ENUMS, EXPORTED)
    optional = ("TaskType",)
    assert {k: v for k, v in seen.items() if k not in optional} == {k: v for k, v in ENUMS.items() if k not in optional}
    assert missing == []


def test_replicate_config_attributes(cluster1):
    def run(w):
        from mooncake.store import ObjectDataType, ReplicateConfig, SoftPinAction
        c = ReplicateConfig()
        names = ("replica_num", "nof_replica_num", "dfs_replica_num", "soft_pin_ttl_ms", "with_hard_pin", "preferred_segments",
                 "preferred_nof_segments", "preferred_segment", "prefer_alloc_in_same_node", "group_ids")
        defaults = {n: getattr(c, n) for n in names}
        enums = c.soft_pin_action == SoftPinAction.PRESERVE, c.data_type == ObjectDataType.UNKNOWN
        c.replica_num, c.preferred_segments, c.preferred_segment = 2, ["a:1", "b:2"], "c:3"
        c.prefer_alloc_in_same_node, c.with_hard_pin, c.group_ids = True, True, ["g", ""]
        c.data_type, c.soft_pin_action, c.soft_pin_ttl_ms = ObjectDataType.TENSOR, SoftPinAction.ENABLE, 1234
        after = (c.replica_num, list(c.preferred_segments), c.preferred_segment, c.prefer_alloc_in_same_node, c.with_hard_pin,
                 list(c.group_ids), c.data_type == ObjectDataType.TENSOR, c.soft_pin_action == SoftPinAction.ENABLE, c.soft_pin_ttl_ms)
        c.group_ids = None
        c.soft_pin_ttl_ms = None
        refused = []
        for value in (-1, 2**64):
            try:
                c.soft_pin_ttl_ms = value
                refused.append("taken")
            except TypeError:
                refused.append("TypeError")
        try:
            c.with_soft_pin = True
            old = c.with_soft_pin
        except AttributeError:
            old = "no attribute"
        try:
            ReplicateConfig(1)
            refused.append("taken")
        except TypeError:
            refused.append("TypeError")
        return defaults, enums, after, c.group_ids, c.soft_pin_ttl_ms, refused, old, str(ReplicateConfig())
    defaults, enums, after, groups, ttl, refused, old, text = cluster1.spawn("A").do(run)
    assert defaults == dict(replica_num=1, nof_replica_num=0, dfs_replica_num=0, soft_pin_ttl_ms=None, with_hard_pin=False,
                            preferred_segments=[], preferred_nof_segments=[], preferred_segment="",
                            prefer_alloc_in_same_node=False, group_ids=None)
    assert enums == (True, True)
    assert after == (2, ["a:1", "b:2"], "c:3", True, True, ["g", ""], True, True, 1234)
    assert (groups, ttl) == (None, None)
    assert refused == ["TypeError"] * 3
    assert old is True, "code of before 2026-08 sets with_soft_pin"
    assert text.startswith("ReplicateConfig: {") and "replica_num: 1" in text


# ---- life cycle ------------------------------------------------------------------------------------

def test_setup_positional_keyword_and_dict(cluster1):
    master = cluster1.master()
    A = cluster1.spawn("A")

    def run(w, address):
        from mooncake.store import MooncakeDistributedStore
        out = {}
        s = MooncakeDistributedStore()
        out["before"] = (s.health_check(), s.close(), s.get_hostname())
        out["positional"] = s.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MiB, MiB, "tcp", "", address)
        out["name"] = s.get_hostname()
        out["health"] = s.health_check()
        out["put"] = s.put("k", b"v"), s.get("k")
        out["close"] = (s.close(), s.close(), s.health_check())
        out["keyword"] = s.setup(local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE", global_segment_size=16 * MiB,
                                 local_buffer_size=MiB, protocol="tcp", rdma_devices="", master_server_addr=address,
                                 tenant_id="default")
        out["gone"] = s.get("k")
        out["again"] = s.put("k", b"w"), s.get("k")
        s.close()
        out["dict"] = s.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": "16MB",
                               "local_buffer_size": 1 << 20, "protocol": "tcp", "rdma_devices": "", "master_server_addr": address})
        out["dict health"] = s.health_check()
        s.close()
        out["requester"] = s.setup("127.0.0.1", "", 0, 0, "tcp", "", address)
        out["requester name"] = s.get_hostname()
        s.close()
        out["rdma"] = s.setup("127.0.0.1", "P2PHANDSHAKE", 0, MiB, "rdma", "mlx5_0,mlx5_1", address)
        s.close()
        out["optional"] = s.setup("127.0.0.1", "P2PHANDSHAKE", 0, MiB, "tcp", "", address, None, False, "", "default", False, 9300)
        s.close()
        errors = []
        for args, kwargs in ((("127.0.0.1",), {}), ((), {}), (("127.0.0.1", "P2PHANDSHAKE", 0, MiB, "tcp", ""), {}),
                             (("127.0.0.1", "P2PHANDSHAKE", 0, MiB, "tcp", "", address), {"no_such_keyword": 1}),
                             (("127.0.0.1", "P2PHANDSHAKE", "x", MiB, "tcp", "", address), {}),
                             (("127.0.0.1", "P2PHANDSHAKE", -1, MiB, "tcp", "", address), {})):
            try:
                errors.append(s.setup(*args, **kwargs))
            except TypeError:
                errors.append("TypeError")
        out["errors"] = errors
        out["small"] = [s.setup("127.0.0.1", "P2PHANDSHAKE", 100, MiB, "tcp", "", address),
                        s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 100, "tcp", "", address),
                        s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 2 << 40, "tcp", "", address)]
        return out
    out = A.do(run, master.address)
    assert out["before"][:2] == (1, 0) and isinstance(out["before"][2], str)
    assert out["positional"] == 0 and out["health"] == 0 and out["put"] == (0, b"v")
    host, port = out["name"].rsplit(":", 1)
    assert host == "127.0.0.1" and 12300 <= int(port) <= 14300
    assert 12300 <= int(out["requester name"].rsplit(":", 1)[1]) <= 14300
    assert out["close"] == (0, 0, 1)
    assert out["keyword"] == 0 and out["gone"] == b"" and out["again"] == (0, b"w")
    assert (out["dict"], out["dict health"], out["requester"], out["rdma"], out["optional"]) == (0, 0, 0, 0, 0)
    assert out["errors"][:5] == ["TypeError"] * 5 and out["errors"][5] in ("TypeError", -600)
    assert out["small"] == [-600] * 3
    assert master.segments() == []


def test_explicit_port_that_is_taken(cluster1):
    cluster1.master()
    name = f"127.0.0.1:{free_port()}"
    A = cluster1.store("A", hostname=name)
    assert A.hostname == name
    assert A.op("put_pattern", "k", 5000) == 0
    B = cluster1.spawn("B")
    code = cluster1.start_setup(B, 16 * MiB, MiB, name).result(40)
    # Refused, or two lives that do not disturb each other (upstream does the second): never a takeover.
    assert code <= 0
    if code == 0:
        assert B.op("put_pattern", "b", 5000) == 0 and A.op("get_pattern", "b", 5000) == "ok"
    assert A.op("get_pattern", "k", 5000) == "ok"


def test_second_setup_of_a_live_store_and_two_stores_in_one_process(cluster):
    cluster.master()
    A = cluster.store("A")
    assert A.op("put_pattern", "k", 5000) == 0
    code = cluster.start_setup(A, 16 * MiB, MiB).result(30)
    assert code <= 0 and A.op("get_pattern", "k", 5000) in (("ok",) if code < 0 else ("ok", "empty"))
    assert cluster.start_setup(A, 32 * MiB, 16 * MiB, store="t").result(30) == 0
    assert A.call("put", "two", P("two", 5000), _store="t") == 0
    assert A.op("get_pattern", "two", 5000) == "ok"
    assert A.call("close", _store="t") == 0
    assert A.call("health_check") == 0 and A.call("health_check", _store="t") == 1


def test_health_check_tells_a_lost_master(cluster1):
    master = cluster1.master()
    A = cluster1.store("A")
    assert A.call("health_check") == 0
    master.kill()
    wait_for(lambda: A.call("health_check") == 2, 10, "health_check 2")
    cluster1.restart_master(master)
    wait_for(lambda: A.call("health_check") == 0, 15, "health_check 0")


# ---- data ------------------------------------------------------------------------------------------

SIZES = (1, 2, 63, 64, 4095, 4096, 4097, 65535, 65536, 65537, 1_000_003, 4 * MiB, 5 * MiB + 7)


@pytest.mark.parametrize("writer", ["owner", "requester"])
def test_put_get_every_size_by_every_entry(cluster, writer):
    """Entry-point matrix: each way to write against each way to read, sizes around the borders."""
    cluster.master()
    A = cluster.store("A", segment=256 * MiB)
    B = cluster.client("B")

    def write(w, sizes):
        s, codes = w.store, {}
        for n in sizes:
            for form in ("put", "put_parts", "put_batch", "put_from", "batch_put_from", "multi"):
                key = f"{form}-{n}"
                data = P(key, n)
                if form == "put":
                    codes[key] = s.put(key, data)
                elif form == "put_parts":
                    codes[key] = s.put_parts(key, data[:n // 3], data[n // 3:n // 2], data[n // 2:])
                elif form == "put_batch":
                    codes[key] = s.put_batch([key], [data])
                else:
                    b = w.buf(n + 3 * 64, fill=0)
                    if form == "multi":
                        cuts = [0, n // 3, n // 2, n]
                        parts = [(cuts[i], cuts[i + 1] - cuts[i], cuts[i] + i * 64) for i in range(3)]
                        for at, size, where in parts:
                            b.write(data[at:at + size], where)
                        codes[key] = s.batch_put_from_multi_buffers([key], [[b.ptr + x for _, _, x in parts]], [[z for _, z, _ in parts]])[0]
                    else:
                        b.write(data)
                        codes[key] = s.put_from(key, b.ptr, n) if form == "put_from" else s.batch_put_from([key], [b.ptr], [n])[0]
                    assert b.red_ok()
                    w.drop(b)
        return codes

    def read(w, sizes):
        s, bad = w.store, []
        for n in sizes:
            for form in ("put", "put_parts", "put_batch", "put_from", "batch_put_from", "multi"):
                key = f"{form}-{n}"
                data = P(key, n)
                b = w.buf(n + 64)
                if s.get_size(key) != n or s.is_exist(key) != 1:
                    bad.append((key, "size"))
                if s.get(key) != data or s.get_batch([key]) != [data]:
                    bad.append((key, "get"))
                handle = s.get_buffer(key)
                if handle is None or bytes(memoryview(handle)) != data or handle.size() != n or len(handle) != n:
                    bad.append((key, "get_buffer"))
                if s.get_into(key, b.ptr, n) != n or not b.same(data) or not b.all(FILL_BYTE, n, 64):
                    bad.append((key, "get_into"))
                b.fill(FILL_BYTE)
                if list(s.batch_get_into([key], [b.ptr], [n + 64])) != [n] or not b.same(data) or not b.all(FILL_BYTE, n, 64):
                    bad.append((key, "batch_get_into larger"))
                b.fill(FILL_BYTE)
                cut = n // 5
                pointers, sizes_ = [b.ptr, b.ptr + cut + 64], [cut, n - cut]
                if list(s.batch_get_into_multi_buffers([key], [pointers], [sizes_])) != [n] or not b.same(data[:cut]) \
                        or not b.same(data[cut:], cut + 64) or not b.all(FILL_BYTE, cut, 64):
                    bad.append((key, "multi"))
                b.fill(FILL_BYTE)
                if n > 1 and (s.get_into(key, b.ptr, n - 1) != -600 or not b.all(FILL_BYTE)):
                    bad.append((key, "short"))
                if not b.red_ok():
                    bad.append((key, "red zone"))
                w.drop(b)
        return bad
    first, second = (A, B) if writer == "owner" else (B, A)
    codes = first.do(write, SIZES)
    assert {k: c for k, c in codes.items() if c != 0} == {}
    assert second.do(read, SIZES) == []
    assert first.do(read, SIZES[::3]) == []


def test_batches_keep_order_length_and_types(cluster):
    cluster.master()
    cluster.store("A", segment=128 * MiB)
    B = cluster.client("B")

    def run(w):
        s, count = w.store, 500
        keys = [f"k{i}" for i in range(count)]
        sizes = [1 + (i * 977) % 30_000 for i in range(count)]
        offsets = [sum(sizes[:i]) for i in range(count)]
        b = w.buf(sum(sizes))
        for k, n, at in zip(keys, sizes, offsets):
            b.write(P(k, n), at)
        put = s.batch_put_from(keys, [b.ptr + at for at in offsets], sizes)
        again = s.batch_put_from(keys, [b.ptr + at for at in offsets], sizes)
        b.fill(FILL_BYTE)
        back = list(range(count))[::-1]
        got = s.batch_get_into([keys[i] for i in back], [b.ptr + offsets[i] for i in back], [sizes[i] for i in back])
        right = all(b.same(P(k, n), at) for k, n, at in zip(keys, sizes, offsets))
        mixed = [k for pair in zip(keys, [f"no{i}" for i in range(count)]) for k in pair]
        exist = s.batch_is_exist(mixed)
        values = s.get_batch(mixed[:40])
        removed = s.batch_remove(keys[:5] + ["no1"], True)
        types = [type(x).__name__ for x in (put, got, exist, values, removed)], {type(c) for c in put + got + exist + removed} == {int}
        return (set(put), set(again), list(got) == [sizes[i] for i in back], right, list(exist) == [1, 0] * count,
                [v == (P(k, sizes[int(k[1:])]) if k[0] == "k" else b"") for k, v in zip(mixed, values)].count(False),
                list(removed), types, b.red_ok())
    seen = B.do(run)
    assert seen == ({0}, {0}, True, True, True, 0, [0] * 5 + [-704], (["list"] * 5, True), True)


def test_keyword_names_of_every_call(cluster1):
    cluster1.master()
    A = cluster1.store("A")

    def run(w):
        from mooncake.store import ReplicateConfig
        s, c, b = w.store, ReplicateConfig(), Buffer(8192)
        out = [s.register_buffer(buffer_ptr=b.ptr, size=8192),
               s.put(key="a", value=b"123", config=c), s.put_parts("p", b"1", b"2", config=c),
               s.put_batch(keys=["b1", "b2"], values=[b"1", b"2"], config=c),
               s.put_from(key="f", buffer_ptr=b.ptr, size=10, config=c),
               s.batch_put_from(keys=["bf"], buffer_ptrs=[b.ptr], sizes=[10], config=c),
               s.batch_put_from_multi_buffers(keys=["m"], all_buffer_ptrs=[[b.ptr]], all_sizes=[[10]], config=c),
               s.get_into(key="f", buffer_ptr=b.ptr, size=100),
               s.batch_get_into(keys=["f"], buffer_ptrs=[b.ptr], sizes=[100]),
               s.batch_get_into_multi_buffers(keys=["f"], all_buffer_ptrs=[[b.ptr]], all_sizes=[[100]], prefer_alloc_in_same_node=False),
               s.upsert(key="a", value=b"4567", config=c), s.upsert_from(key="f", buffer_ptr=b.ptr, size=11, config=c),
               s.upsert_parts("p", b"xyz", config=c), s.upsert_batch(keys=["b1"], values=[b"99"], config=c),
               s.batch_upsert_from(keys=["bf"], buffer_ptrs=[b.ptr], sizes=[12], config=c),
               s.get_size("bf"), len(s.get_replica_desc(key="a")), sorted(s.batch_get_replica_desc(keys=["a", "f"])),
               s.remove(key="a", force=True), s.batch_remove(keys=["f", "p"], force=True),
               s.remove_by_regex(regex_pattern="^b", force=True), s.remove_all(force=True),
               s.unregister_buffer(buffer_ptr=b.ptr), s.unregister_buffer(b.ptr)]
        return out
    assert A.do(run) == [0, 0, 0, 0, 0, [0], [0], 10, [10], [10], 0, 0, 0, 0, [0], 12, 1, ["a", "f"], 0, [0, 0], 3, 1, 0, -600]


def test_upsert_replaces_values_of_same_and_other_length(cluster):
    cluster.master()
    A = cluster.store("A")
    B = cluster.client("B")

    def run(w):
        s, bad = w.store, []
        b = w.buf(200_000)
        for i, n in enumerate((1000, 1000, 150_000, 10, 65536, 65536)):
            data = P(f"u{i}", n)
            b.write(data)
            codes = (s.upsert("u", data), s.upsert_parts("up", data[:n // 2], data[n // 2:]), s.upsert_from("uf", b.ptr, n),
                     s.upsert_batch(["ub1", "ub2"], [data, data[::-1]]), *s.batch_upsert_from(["bu1", "bu2"], [b.ptr] * 2, [n, n // 2]))
            if set(codes) != {0}:
                bad.append((i, codes))
            seen = [s.get(k) == v for k, v in (("u", data), ("up", data), ("uf", data), ("ub1", data), ("ub2", data[::-1]),
                                               ("bu1", data), ("bu2", data[:n // 2]))]
            if not all(seen):
                bad.append((i, seen))
        return bad
    assert B.do(run) == []
    assert A.op("get_pattern", "u", 65536, "u5") == "ok"
    assert A.call("put", "u", b"other") == 0 and A.op("get_pattern", "u", 65536, "u5") == "ok"


def test_remove_forms(cluster1):
    cluster1.master()
    A = cluster1.store("A")
    for i in range(10):
        assert A.call("put", f"x{i}", b"v") == 0
        assert A.call("put", f"y{i}", b"v") == 0
    assert A.call("remove_by_regex", "x[0-4]$") == 5
    assert A.call("remove_by_regex", "[") < 0
    assert A.call("remove_by_regex", "nothing-like-this") == 0
    assert A.call("batch_is_exist", ["y0", "y1"]) == [1, 1]
    assert A.call("remove_by_regex", "y[01]") == 0, "leased keys are left alone without force"
    assert A.call("remove_by_regex", "y[01]", force=True) == 2
    assert A.call("is_exist", "x9") == 1
    assert A.call("batch_remove", ["x5", "x9", "gone"]) == [0, -706, -704]
    assert A.call("remove_all") == 11
    assert A.call("remove_all", force=True) == 1
    assert A.call("remove_all", force=True) == 0


def test_replica_descriptors(cluster1):
    cluster1.master()
    A = cluster1.store("A")
    B = cluster1.store("B")
    assert A.call("put", "k", P("k", 5000), Config(preferred_segment=B.hostname)) == 0
    assert A.call("put", "two", P("two", 5000), Config(replica_num=2)) == 0

    def run(w):
        import mooncake.store as m
        descs = w.store.get_replica_desc("k")
        d = descs[0]
        mem = d.get_memory_descriptor().buffer_descriptor
        return (len(descs), d.status == m.ReplicaStatus.COMPLETE, d.is_memory_replica(), d.is_disk_replica(), d.is_local_disk_replica(),
                mem.size, isinstance(mem.buffer_address, int), str(mem.transport_endpoint), len(w.store.get_replica_desc("two")),
                w.store.get_replica_desc("missing"), list(w.store.batch_get_replica_desc(["k", "missing"])))
    seen = A.do(run)
    assert seen[:7] == (1, True, True, False, False, 5000, True)
    assert seen[7] != ""
    assert seen[8:] == (2, [], ["k"])


def test_placement_and_pins(cluster):
    cluster.master()
    A = cluster.store("A", segment=32 * MiB)
    B = cluster.store("B", segment=32 * MiB)
    C = cluster.client("C")
    for config in ({"preferred_segment": A.hostname}, {"preferred_segments": [A.hostname]}):
        for i in range(4):
            C.call("put", f"p{i}{list(config)[0]}", P("p", 100_000), Config(config))
    seg = cluster.the_master.metrics()
    on_a = sum(v for k, v in seg.items() if k.startswith("segment_allocated_bytes") and A.hostname in k)
    on_b = sum(v for k, v in seg.items() if k.startswith("segment_allocated_bytes") and B.hostname in k)
    assert on_a >= 800_000 and on_b == 0
    assert C.call("put", "r2", P("r2", 100_000), Config(replica_num=2)) == 0
    A.kill()
    assert C.op("get_pattern", "r2", 100_000) in ("ok", "empty")
    wait_for(lambda: C.op("get_pattern", "r2", 100_000) == "ok", 8, "second replica read")
    for bad in ({"nof_replica_num": 1}, {"replica_num": 0}):
        assert C.call("put", "bad", b"x", Config(bad)) == -600, bad
    assert C.call("is_exist", "bad") == 0
    assert C.call("put", "hard", P("hard", 100_000), Config(with_hard_pin=True)) == 0
    for i in range(80):
        C.op("put_pattern", f"f{i}", MiB, "f")
    assert C.op("get_pattern", "hard", 100_000) == "ok"


def test_values_larger_than_the_local_buffer_and_than_any_segment(cluster):
    cluster.master()
    A = cluster.store("A", segment=64 * MiB, local=MiB)
    assert A.op("put_pattern", "big", 20 * MiB) == 0
    assert A.op("get_pattern", "big", 20 * MiB) == "ok"
    code = A.op("put_from_pattern", "huge", 64 * MiB + 65536)
    assert code in (-600, -200), "larger than any provider"
    assert A.call("is_exist", "huge") == 0


def test_no_segment_mounted(cluster1):
    cluster1.master()
    C = cluster1.client("C")
    code = C.call("put", "k", b"x")
    assert code in (-101, -200) and C.call("is_exist", "k") == 0
    assert C.call("get", "k") == b""


def test_addresses_near_2_to_64_and_wrong_types(cluster1):
    cluster1.master()
    A = cluster1.store("A")
    assert A.call("put", "k", b"x" * 100) == 0

    def run(w):
        s, out = w.store, []
        for call in (lambda: s.get_into("k", 2**64 - 50, 100), lambda: s.get_into("k", 2**63, 100), lambda: s.put_from("n", 2**64 - 1, 2),
                     lambda: s.batch_get_into(["k"], [2**64 - 8], [100])[0], lambda: s.register_buffer(2**64 - 4096, 4096 * 2)):
            out.append(call() < 0)
        errors = []
        for call in (lambda: s.get(5), lambda: s.put("k"), lambda: s.get_into("k", "p", 1), lambda: s.get_into("k", -1, 1),
                     lambda: s.get_into("k", 2**64, 1), lambda: s.batch_is_exist("abc"), lambda: s.batch_is_exist([1]),
                     lambda: s.batch_put_from(["a"], ["x"], [1]), lambda: s.batch_get_into_multi_buffers(["a"], [5], [[1]]),
                     lambda: s.put_batch(["a"], [5]), lambda: s.is_exist(None), lambda: s.remove("k", "yes", 3)):
            try:
                errors.append(call())
            except TypeError:
                errors.append("TypeError")
        return out, errors
    out, errors = A.do(run)
    assert out == [True] * 5
    # A str is a sequence of one-character strings: upstream's binding takes it or refuses it, both are harmless.
    assert errors[:5] == ["TypeError"] * 5 and errors[5] in ("TypeError", [0, 0, 0])
    assert errors[6:] == ["TypeError"] * 6
    assert A.call("is_exist", "k") == 1


def test_many_threads_on_one_store(cluster):
    """Every method from 16 threads at once; each thread sees its own keys exactly."""
    cluster.master()
    cluster.store("A", segment=256 * MiB)
    B = cluster.client("B", local=64 * MiB)

    def run(w):
        s = w.store

        def one(t):
            bad, b = [], w.buf(100_000)
            for i in range(25):
                key, n = f"{t}-{i}", 1 + (t * 7919 + i * 104729) % 100_000
                data = P(key, n)
                if s.put(key, data) != 0 or s.get(key) != data or s.is_exist(key) != 1 or s.get_size(key) != n:
                    bad.append(key)
                if s.get_into(key, b.ptr, n) != n or not b.same(data):
                    bad.append((key, "into"))
                if list(s.batch_is_exist([key, "no"])) != [1, 0]:
                    bad.append((key, "batch"))
                if i % 3 == 0 and s.remove(key, True) != 0:
                    bad.append((key, "remove"))
            return bad + ([] if b.red_ok() else ["red"])
        return parallel(16, one)
    assert B.do(run) == [[]] * 16


# ---- every method in every sad state -----------------------------------------------------------------

def all_calls(w, store_name, mode):
    """Call every method once. mode 'fork' runs in a forked child. Answers {method: (kind of result, seconds)}; the kind
    is 'negative', 'missing', 'good' or a text that says what was wrong."""
    import json
    s = w.get_store(store_name)
    if "sad" not in w.kept:
        w.kept["sad"] = Buffer(8192)
    b = w.kept["sad"]
    from mooncake.store import ReplicateConfig
    config = ReplicateConfig()

    def code(value):
        return ("negative" if value < 0 else "good") if type(value) is int else f"WRONG type {type(value).__name__}"

    def codes(value, n):
        if type(value) is not list or len(value) != n:
            return f"WRONG list {value!r} instead of {n} codes"
        kinds = {code(v) for v in value}
        return kinds.pop() if len(kinds) == 1 else ("good" if kinds == {"good", "negative"} else f"WRONG {kinds}")

    def data(value):
        return ("missing" if value == b"" else "good") if type(value) is bytes else f"WRONG type {type(value).__name__}"
    calls = {
        "put": lambda: code(s.put("n1", b"x" * 100)), "put_config": lambda: code(s.put("n2", b"x", config)),
        "get": lambda: data(s.get("k")), "put_parts": lambda: code(s.put_parts("n3", b"x", b"y")),
        "put_batch": lambda: code(s.put_batch(["n4", "n5"], [b"x", b"y"])), "put_from": lambda: code(s.put_from("n6", b.ptr, 100)),
        "get_into": lambda: code(s.get_into("k", b.ptr, 8192)),
        "batch_put_from": lambda: codes(s.batch_put_from(["n7", "n8"], [b.ptr, b.ptr], [10, 10]), 2),
        "batch_get_into": lambda: codes(s.batch_get_into(["k", "j"], [b.ptr, b.ptr + 4096], [4096, 4096]), 2),
        "batch_put_from_multi_buffers": lambda: codes(s.batch_put_from_multi_buffers(["n9", "n10"], [[b.ptr], [b.ptr]], [[9], [9]], config), 2),
        "batch_get_into_multi_buffers": lambda: codes(s.batch_get_into_multi_buffers(["k", "j"], [[b.ptr], [b.ptr]], [[4096], [4096]]), 2),
        "is_exist": lambda: code(s.is_exist("k")), "batch_is_exist": lambda: codes(s.batch_is_exist(["k", "j", "i"]), 3),
        "get_size": lambda: code(s.get_size("k")), "remove": lambda: code(s.remove("n1")),
        "batch_remove": lambda: codes(s.batch_remove(["n1", "n2"]), 2), "remove_by_regex": lambda: code(s.remove_by_regex("^none$")),
        "upsert": lambda: code(s.upsert("n11", b"x")), "upsert_from": lambda: code(s.upsert_from("n12", b.ptr, 10)),
        "upsert_parts": lambda: code(s.upsert_parts("n13", b"x")), "upsert_batch": lambda: code(s.upsert_batch(["n14"], [b"x"])),
        "batch_upsert_from": lambda: codes(s.batch_upsert_from(["n15"], [b.ptr], [10]), 1),
        "get_batch": lambda: (lambda v: "missing" if v and set(v) == {b""} else "good" if len(v) == 2 else f"WRONG {v!r}")(s.get_batch(["k", "j"])),
        "get_buffer": lambda: "missing" if s.get_buffer("k") is None else "good",
        "batch_get_buffer": lambda: (lambda v: f"WRONG length {len(v)}" if len(v) != 2 else "missing" if v == [None, None] else "good")(s.batch_get_buffer(["k", "j"])),
        "get_replica_desc": lambda: "good" if s.get_replica_desc("k") else "missing",
        "batch_get_replica_desc": lambda: "good" if s.batch_get_replica_desc(["k"]) else "missing",
        "health_check": lambda: "negative" if s.health_check() != 0 else "good",
        "get_hostname": lambda: "good" if isinstance(s.get_hostname(), str) else "WRONG",
        "register_buffer": lambda: code(s.register_buffer(b.ptr, 8192)), "unregister_buffer": lambda: code(s.unregister_buffer(b.ptr)),
        "remove_all": lambda: code(s.remove_all(False)),
    }

    def run():
        out = {}
        for name, call in calls.items():
            begin = time.monotonic()
            try:
                kind = call()
            except (RuntimeError, ConnectionError):
                kind = "raised"
            out[name] = (kind, time.monotonic() - begin)
        if not b.red_ok():
            out["red zone"] = ("WRONG", 0.0)
        return out
    if mode != "fork":
        return run()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            out = run()
            begin = time.monotonic()
            out["close"] = (code(s.close()), time.monotonic() - begin)
            os.write(writer, json.dumps(out).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    text = b""
    while True:
        part = os.read(reader, 65536)
        if not part:
            break
        text += part
    status = os.waitpid(child, 0)[1]
    return {name: tuple(v) for name, v in json.loads(text or b"{}").items()}, status


ANY = {"get_hostname", "register_buffer", "unregister_buffer"}  # local acts: any code is fine in a sad state


def judge(seen, limit, allow_good=()):
    wrong = {n: kind for n, (kind, _) in seen.items() if kind.startswith("WRONG")}
    slow = {n: round(t, 2) for n, (_, t) in seen.items() if t > limit}
    good = [n for n, (kind, _) in seen.items() if kind == "good" and n not in ANY and n not in allow_good]
    return wrong, slow, good


NOTHING = ({}, {}, [])


def test_every_method_before_setup(cluster1):
    A = cluster1.spawn("A")
    assert judge(A.do(all_calls, "s", "plain"), 1.0) == NOTHING


def test_every_method_after_close(cluster):
    cluster.master()
    A = cluster.store("A")
    assert A.call("put", "k", b"x" * 100) == 0

    def register(w):
        w.kept["sad"] = w.buf(8192)
    A.do(register)
    before = A.do(all_calls, "s", "plain")
    assert judge(before, 5.0)[:2] == ({}, {}) and before["get"][0] == "good"
    assert A.call("close") == 0
    assert judge(A.do(all_calls, "s", "plain"), 1.0) == NOTHING
    assert A.call("close") == 0


@pytest.mark.watchdog(60)
def test_every_method_while_another_thread_closes(cluster):
    """Four threads call everything in a loop while a fifth closes and sets up again. Any code is right, a crash or a
    wrong shape is not."""
    cluster.master()
    A = cluster.store("A")

    def hammer(w, address):
        w.kept["sad"] = w.buf(8192)
        s, b, stop, wrong = w.store, w.kept["sad"], threading.Event(), []

        def one(t):
            n = 0
            while not stop.is_set():
                n += 1
                try:
                    for name, value, length in (("exist", s.batch_is_exist(["a", "b"]), 2), ("put", s.batch_put_from(["c", "d"], [b.ptr] * 2, [9, 9]), 2),
                                                ("get", s.batch_get_into(["a", "c"], [b.ptr] * 2, [99, 99]), 2),
                                                ("multi", s.batch_put_from_multi_buffers(["e"], [[b.ptr]], [[9]]), 1)):
                        if len(value) != length or any(type(v) is not int for v in value):
                            wrong.append((name, value))
                    s.put(f"t{t}", b"x" * 1000)
                    if s.get(f"t{t}") not in (b"", b"x" * 1000):
                        wrong.append("get")
                    s.get_size("a"), s.health_check(), s.get_hostname(), s.remove("c", True), s.get_replica_desc("a")
                    handle = s.get_buffer(f"t{t}")
                    if handle is not None and bytes(memoryview(handle)) != b"x" * 1000:
                        wrong.append("handle")
                except RuntimeError:
                    pass
            return n
        threads = [threading.Thread(target=one, args=(t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        setups, slow = [], 0.0
        for _ in range(12):
            time.sleep(0.15)
            begin = time.monotonic()
            s.close()
            slow = max(slow, time.monotonic() - begin)
            setups.append(s.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MiB, MiB, "tcp", "", address))
        stop.set()
        for thread in threads:
            thread.join(20)
        return setups, slow, wrong[:5], [t.is_alive() for t in threads]
    setups, slow, wrong, alive = A.do(hammer, cluster.the_master.address, limit=50)
    assert setups == [0] * 12 and wrong == [] and alive == [False] * 4
    assert slow < 10
    A.leave()
    assert A.wait(15) == 0


def test_every_method_after_fork(cluster):
    """The child's copy of the store is dead; the parent's goes on, and so does its registration and segment."""
    cluster.master()
    A = cluster.store("A")
    B = cluster.client("B")
    for proc in (A, B):
        assert proc.op("put_many", f"{proc.name}-", 5, 50_000) == [0] * 5

        def register(w):
            w.kept["sad"] = w.buf(8192)
        proc.do(register)
        seen, status = proc.do(all_calls, "s", "fork")
        assert status == 0, f"the child ended with status {status}"
        assert seen.pop("close")[0] == "good"
        assert judge(seen, 2.0) == NOTHING
        assert proc.call("health_check") == 0
        assert proc.op("get_many", "A-", 5, 50_000) == ["ok"] * 5
        assert proc.op("put_pattern", f"after-{proc.name}", 50_000) == 0
    assert A.op("get_pattern", "after-B", 50_000) == "ok"
    assert cluster.the_master.segments() == [A.hostname]


@pytest.mark.watchdog(150)
def test_every_method_with_the_master_gone(cluster):
    master = cluster.master()
    A = cluster.store("A", env={"MC_RPC_TIMEOUT_MS": "2000", "EGMSTORE_DEADLINE_MS": "2000"})
    assert A.call("put", "k", b"x" * 100) == 0

    def register(w):
        w.kept["sad"] = w.buf(8192)
    A.do(register)
    master.kill()
    seen = A.do(all_calls, "s", "plain", limit=120)
    assert judge(seen, 4.0) == NOTHING
    begin = time.monotonic()
    assert A.call("close") == 0 and time.monotonic() - begin < 10


@pytest.mark.watchdog(90)
def test_every_method_with_the_owner_gone(cluster):
    cluster.master()
    A = cluster.store("A")
    B = cluster.client("B")
    assert B.op("put_pattern", "k", 4096) == 0 and B.op("put_pattern", "j", 4096) == 0

    def register(w):
        w.kept["sad"] = w.buf(8192)
    B.do(register)
    A.kill()
    seen = B.do(all_calls, "s", "plain", limit=80)
    wrong, slow, _ = judge(seen, 5.0)
    assert (wrong, slow) == ({}, {})
    # A reader that has the pool mapped may still get exact bytes until the segment is judged dead; never others.
    assert B.op("get_pattern", "k", 4096) in ("ok", "empty")
    wait_for(lambda: B.call("batch_is_exist", ["k", "j"]) == [0, 0], 10, "keys gone after the ttl", 0.2)
    seen = B.do(all_calls, "s", "plain", limit=80)
    writers_and_readers = {"remove_all", "remove_by_regex", "health_check", "is_exist", "batch_is_exist"}
    assert judge(seen, 5.0, writers_and_readers) == NOTHING
    assert B.call("put", "n", b"x") in (-101, -200)
    A2 = cluster.store("A2")
    wait_for(lambda: B.op("put_pattern", "back", 4096) == 0, 5, "put to the new owner")
    assert A2.op("get_pattern", "back", 4096) == "ok"
