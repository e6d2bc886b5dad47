# SPDX-License-Identifier: Apache-2.0
"""vLLM's MooncakeStoreConnector, replayed without vLLM (contract/vllm-connector.md §4.5 a).

One worker process: set-up with the seven positionals, one registered region that stands for the KV cache, and the
connector's threads on one store object: one sender (exist, then put what is missing), four receivers (get into
other blocks), one lookup thread (exist of whole prompts).  Keys as in §3.1, segments as in §3.4.  Every block that a
receiver reports as loaded is compared byte by byte, and what lies around the segments must stay as it was.
A second worker, which has only ever read, loads what the first has stored, in another cut.
"""
import hashlib

import pytest

from harness.cluster import wait_for
from harness.pattern import MiB

# name: (layers, segment bytes, blocks per prompt, prompts): one key is `layers` segments of `segment` bytes
SHAPES = {
    "llama8b_tp1": (32, 65536, 24, 3),
    "llama70b_tp8": (80, 8192, 64, 3),
    "deepseek_mla": (61, 73728, 8, 3),
    "packed": (1, 2 * MiB, 16, 3),
    "token_major": (80 * 16, 1024, 16, 3),
}


def key_list(model, prompt, blocks, rank=0):
    """Key strings as the connector builds them; equal prefixes and ends on purpose."""
    out, parent = [], prompt
    for i in range(blocks):
        parent = hashlib.sha256(f"{parent}/{i}".encode()).hexdigest()
        out.append(f"{model}@store_tp:8@store_pp:1@store_format:tp_shared_lbhnc@store_schema:0123456789abcdef"
                   f"@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0@{parent}")
    return out


def worker(w, address, segment_size, layers, seg, blocks, prompts, all_keys, region_blocks):
    """The replay; answers counters and a list of faults (empty = right)."""
    import queue
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig
    s = MooncakeDistributedStore()
    w.stores["s"] = s
    faults, loaded, saved = [], [0], [0]
    if s.setup("127.0.0.1", "P2PHANDSHAKE", segment_size, 16 * MiB, "tcp", "", address) != 0:
        return {"faults": ["setup"]}
    config = ReplicateConfig()
    config.preferred_segment = s.get_hostname() if segment_size else ""
    size = layers * seg
    # region = layers x blocks x seg (layer-major, as RankLocal layout): block b of layer l at (l * region_blocks + b) * seg
    region = w.buf(layers * region_blocks * seg, register=False)
    if s.register_buffer(region.ptr, region.size) != 0:
        return {"faults": ["register"]}
    half = region_blocks // 2  # lower half: what is saved; upper half: where receivers load to

    def addresses(block):
        return [region.ptr + (layer * region_blocks + block) * seg for layer in range(layers)]

    def content(key):
        return P(key, size)

    def write_block(block, data):
        for layer in range(layers):
            region.write(data[layer * seg:(layer + 1) * seg], (layer * region_blocks + block) * seg)

    def same_block(block, data):
        return all(region.same(data[layer * seg:(layer + 1) * seg], (layer * region_blocks + block) * seg) for layer in range(layers))
    jobs, done = queue.Queue(), threading.Event()

    def sender():
        for prompt in range(prompts):
            keys = all_keys[prompt]
            for repeat in range(2):  # the second pass finds all of them there
                exist = s.batch_is_exist(keys)
                if len(exist) != len(keys):
                    faults.append("short exist")
                missing = [i for i, e in enumerate(exist) if e != 1]
                if repeat and missing:
                    faults.append(f"{len(missing)} keys absent right after their put")
                for i in missing:
                    write_block(i, content(keys[i]))
                if missing:
                    codes = s.batch_put_from_multi_buffers([keys[i] for i in missing], [addresses(i) for i in missing],
                                                           [[seg] * layers for _ in missing], config)
                    if list(codes) != [0] * len(missing):
                        faults.append(("put", sorted(set(codes))))
                    saved[0] += len(missing)
                    for i in missing:  # the connector reuses the blocks at once
                        write_block(i, bytes(size))
            for turn in range(4):
                jobs.put((prompt, turn))
        for _ in range(4):
            jobs.put(None)

    def receiver(number):
        share = half // 4
        while True:
            job = jobs.get()
            if job is None:
                return
            prompt, turn = job
            keys = all_keys[prompt]
            order = [(i + turn) % len(keys) for i in range(len(keys))]
            for at in range(0, len(order), share):
                part = order[at:at + share]
                slots = [half + number * share + j for j in range(len(part))]
                codes = s.batch_get_into_multi_buffers([keys[i] for i in part], [addresses(b) for b in slots], [[seg] * layers for _ in part])
                if len(codes) != len(part):
                    faults.append("short get")
                for i, block, code in zip(part, slots, codes):
                    if code != size:
                        faults.append(("get", code))
                    elif not same_block(block, content(keys[i])):
                        faults.append(("WRONG bytes", prompt, i))
                    else:
                        loaded[0] += 1

    def lookup():
        n = 0
        while not done.is_set():
            for prompt in range(prompts):
                exist = s.batch_is_exist(all_keys[prompt] + ["never@written"])
                if len(exist) != len(all_keys[prompt]) + 1 or exist[-1] != 0 or not set(exist) <= {0, 1}:
                    faults.append(("lookup", sorted(set(exist))))
                n += 1
            time.sleep(0.002)
        return n
    finder = threading.Thread(target=lookup)
    threads = [threading.Thread(target=sender)] + [threading.Thread(target=receiver, args=(i,)) for i in range(4)]
    for thread in threads + [finder]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    finder.join()
    if not region.red_ok():
        faults.append("red zone")
    return {"faults": faults[:10], "loaded": loaded[0], "saved": saved[0]}


def reader(w, layers, seg, keys):
    """Load all keys in one call, cut into other segments than they were stored in."""
    size = layers * seg
    b = w.buf(size * len(keys), fill=0xEE)
    cuts = [0, size // 7, size // 2, size - 1, size]
    pieces = [cuts[i + 1] - cuts[i] for i in range(4)]
    codes = list(w.store.batch_get_into_multi_buffers(
        keys, [[b.ptr + k * size + cuts[i] for i in range(4)] for k in range(len(keys))], [pieces] * len(keys)))
    good = [b.same(P(key, size), k * size) for k, key in enumerate(keys)]
    short = w.store.batch_get_into_multi_buffers(keys[:1], [[b.ptr, b.ptr + 10]], [[10, size - 11]])
    return codes == [size] * len(keys), all(good), list(short), b.red_ok()


@pytest.mark.watchdog(90, long=200)
@pytest.mark.parametrize("mode", ["embedded", "standalone"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_connector_pattern(cluster, long, shape, mode):
    layers, seg, blocks, prompts = SHAPES[shape]
    blocks *= 4 if long else 1
    size = layers * seg
    region_blocks = 2 * blocks
    cluster.master(default_kv_lease_ttl=10_000)
    capacity = 2 * prompts * blocks * (size + 65536) + 16 * MiB
    W = cluster.spawn("W")
    if mode == "standalone":
        cluster.store("S", segment=capacity)
    keys = [key_list("Llama-3-8B", prompt, blocks) for prompt in range(prompts)]
    assert 120 <= len(keys[0][0]) <= 220
    seen = W.do(worker, cluster.the_master.address, capacity if mode == "embedded" else 0, layers, seg, blocks, prompts, keys,
                region_blocks, limit=180)
    assert seen["faults"] == []
    assert seen["saved"] == prompts * blocks and seen["loaded"] == prompts * blocks * 4
    B = cluster.client("B")
    assert B.do(reader, layers, seg, keys[1]) == (True, True, [-600], True)
    assert W.call("remove_all", force=True) == prompts * blocks
    assert W.call("batch_is_exist", keys[0]) == [0] * blocks
    assert W.call("close") == 0 and W.call("close") == 0


def test_lookup_of_a_whole_128k_prompt(cluster1, long):
    """65,536 keys in one exist call, of which a prefix is there: right length, right answers, in good time."""
    count = 65_536 if long else 16_384
    cluster1.master()
    A = cluster1.store("A", segment=256 * MiB)
    keys = [k for rank in range(8) for k in key_list("Llama-3-70B", "long", count // 8, rank)]

    def fill(w, keys):
        failed = 0
        for at in range(0, len(keys), 512):
            part = keys[at:at + 512]
            failed += w.store.put_batch(part, [k[-16:].encode() for k in part]) != 0
        return failed

    def look(w, keys):
        begin = time.monotonic()
        exist = w.store.batch_is_exist(keys)
        return list(exist), time.monotonic() - begin
    stored = keys[:count // 8]
    assert A.do(fill, stored) == 0
    exist, seconds = A.do(look, keys)
    assert exist == [1] * len(stored) + [0] * (count - len(stored))
    assert seconds < 2.0


def encoder_cache_calls(w, key, size):
    """A save and a load as the encoder-cache connector makes them (§1.4): header and payload in two segments."""
    b = w.buf(size)
    put = w.store.batch_put_from_multi_buffers([key], [[b.ptr, b.ptr + 64]], [[64, size - 64]])
    got = w.store.batch_get_into([key], [b.ptr], [size])
    assert type(put) is list and type(got) is list and type(put[0]) is type(got[0]) is int
    return put[0], got[0]


@pytest.mark.watchdog(120)
def test_encoder_cache_meets_only_codes_it_takes(cluster):
    """Codes outside these sets take the worker down."""
    puts, gets = {0, -200, -703, -704, -705, -900, -901, -1700}, {-200, -703, -704, -705, -900, -901, -600, -702, -707}
    master = cluster.master()
    C = cluster.client("C")
    assert C.do(encoder_cache_calls, "nobody", 4096) == (-200, -704)
    A = cluster.store("A", segment=64 * MiB)
    wait_for(lambda: C.do(encoder_cache_calls, "k", 4096) == (0, 4096), 10, "a put with the new provider")
    put, got = C.do(encoder_cache_calls, "huge", 65 * MiB)
    assert (put, got) == (-200, -704), "larger than any provider"
    A.kill()
    for i in range(5):
        put, got = C.do(encoder_cache_calls, f"dead{i}", 4096, limit=60)
        assert put in puts and (got == 4096 or got in gets), ("owner gone", put, got)
    master.kill()
    put, got = C.do(encoder_cache_calls, "alone", 4096, limit=90)
    assert put in puts - {0} and got in gets, ("master gone", put, got)
