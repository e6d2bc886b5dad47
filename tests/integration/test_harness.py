# SPDX-License-Identifier: Apache-2.0
"""The harness itself must be able to fail: each kind of wrongness that it promises to see is produced here once."""
import hashlib
import os
import time

import pytest

from harness.net import free_port, listen_ports, parse_metrics, send_raw
from harness.pattern import BLOCK, P, P_blocks, verdict
from harness.proc import CallTimeout, ProcessDied, RemoteError


def test_pattern_is_shake_256_and_huge_blocks_all_differ():
    assert P("tag", 1000) == hashlib.shake_256(b"tag").digest(1000)
    blocks = [hashlib.sha256(b).digest() for b in P_blocks("tag", 2 * BLOCK + 5)]
    assert len(set(blocks)) == 3
    assert sum(len(b) for b in P_blocks("tag", 2 * BLOCK + 5)) == 2 * BLOCK + 5


def test_verdict_names_the_first_difference():
    good = P("v", 1000)
    assert verdict(good, good) == "ok" and verdict(b"", good) == "empty"
    assert "length 999" in verdict(good[:-1], good)
    assert "first difference at 700" in verdict(good[:700] + bytes([good[700] ^ 1]) + good[701:], good)


def test_red_zones_and_single_bytes_show(cluster1):
    def run(w):
        out = []
        for offset in (-1, 5000, -4096, 5000 + 4095):
            b = Buffer(5000)
            fresh = b.red_ok() and b.all(FILL_BYTE)
            ctypes.memset(b.ptr + offset, 0, 1)
            out.append((fresh, b.red_ok()))
        b = Buffer(5000)
        b.write(P("x", 5000))
        same = b.same(P("x", 5000))
        ctypes.memset(b.ptr + 4999, b.bytes(4999, 1)[0] ^ 1, 1)
        return out, same, b.same(P("x", 5000)), b.verdict(P("x", 5000))
    out, same, after, text = cluster1.spawn("A").do(run)
    assert out == [(True, False)] * 4
    assert (same, after) == (True, False) and "first difference at 4999" in text


def test_dead_hanging_and_raising_processes_are_told_apart(cluster1):
    def hang(w):
        time.sleep(30)

    def fall(w):
        os.abort()

    def fail(w):
        return 1 // 0
    A = cluster1.spawn("A")
    assert A.op("ping") == A.pid
    with pytest.raises(CallTimeout):
        A.do(hang, limit=0.2)
    with pytest.raises(RemoteError) as caught:
        A.do(fail)
    assert caught.value.kind == "ZeroDivisionError" and "test_harness.py" in str(caught.value)
    pending = A.start_do(hang)
    with pytest.raises(ProcessDied):
        A.do(fall)
    with pytest.raises(ProcessDied):
        pending.result(5)
    assert A.wait(5) == -6 and not A.alive


def test_calls_of_one_process_run_at_once_and_stop_holds_them(cluster1):
    def nap(w, seconds):
        time.sleep(seconds)
        return os.getpid()
    A = cluster1.spawn("A")
    A.op("ping")
    begin = time.monotonic()
    assert [c.result(5) for c in [A.start_do(nap, 0.4) for _ in range(5)]] == [A.pid] * 5
    assert time.monotonic() - begin < 1.5
    A.stop()
    call = A.start_op("ping")
    time.sleep(0.3)
    assert not call.ready() and A.state() == "T"
    A.cont()
    assert call.result(5) == A.pid


def test_strays_are_found(cluster1):
    def leave_one_behind(w):
        import subprocess
        return subprocess.Popen(["sleep", "60"], start_new_session=True).pid
    A = cluster1.spawn("A")
    pid = A.do(leave_one_behind)
    assert pid in cluster1.strays()
    os.kill(pid, 9)
    A.kill()


def test_ports_and_metrics_are_read(cluster1):
    def listen(w, port):
        w.kept["server"] = socket.create_server(("127.0.0.1", port))
        return True
    A, port = cluster1.spawn("A"), free_port()
    assert A.do(listen, port)
    assert ("127.0.0.1", port) in listen_ports(A.pid)
    assert send_raw(("127.0.0.1", port), b"hello", limit=0.3)[0] == "silent"
    assert send_raw(("127.0.0.1", free_port()), b"", limit=0.3)[0] == "refused"
    text = '# HELP a b\na_total 5\nseg{segment="127.0.0.1:1"} 1.5e3\nbroken\n'
    assert parse_metrics(text) == {"a_total": 5.0, 'seg{segment="127.0.0.1:1"}': 1500.0}
