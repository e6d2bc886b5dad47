# SPDX-License-Identifier: Apache-2.0
"""S5 cases of contract/faults.md: configuration, metrics, integration. One test per case, named after its id."""
import os
import re
import socket
import subprocess
import time

import pytest

from harness.cluster import LEASE_MS, program, wait_for
from harness.net import free_port, http_get, send_raw
from harness.pattern import MiB
from harness.proc import Program


class Namespaces:
    """Network namespaces held open by sleeping processes; needs root, the caller skips otherwise."""

    def __init__(self, count):
        self.holders = []
        for _ in range(count):
            self.holders.append(subprocess.Popen(["unshare", "-n", "sleep", "600"], start_new_session=True))
        time.sleep(0.3)
        self.usable = all(h.poll() is None for h in self.holders)

    def inside(self, index):
        return ["nsenter", "-t", str(self.holders[index].pid), "-n"]

    def run(self, index, script):
        done = subprocess.run([*self.inside(index), "sh", "-ec", script], capture_output=True, text=True)
        return done.returncode == 0

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()


@pytest.fixture
def namespaces():
    pair = Namespaces(2)
    if not pair.usable:
        pair.close()
        pytest.skip("network namespaces need root here")
    yield pair
    pair.close()


def master_in(cluster, prefix, raw, name="master"):
    argv = [*prefix, program("mooncake_master"), *raw]
    return cluster.adopt(Program(name, argv, cluster.env(), cluster.log_path(name)))


@pytest.mark.parametrize("name", ["0.0.0.0", "::", "", "localhost"])
def test_B103_published_address_is_a_wildcard(cluster1, name):
    cluster1.master()
    A = cluster1.spawn("A")
    code = cluster1.start_setup(A, 16 * MiB, MiB, name).result(30)
    assert code <= 0
    if code == 0:
        host = A.call("get_hostname")
        bare = host.rsplit(":", 1)[0].strip("[]")
        assert bare not in ("0.0.0.0", "::", "*", ""), host
        assert int(host.rsplit(":", 1)[1]) > 0
        assert host in cluster1.the_master.segments()
        B = cluster1.client("B")
        assert A.op("put_pattern", "k", 5000) == 0 and B.op("get_pattern", "k", 5000) == "ok"


@pytest.mark.watchdog(60)
def test_B103_two_network_namespaces(cluster, namespaces):
    """Two hosts, as far as the network can tell: put in one, get in the other. The second has its own runtime
    folder, so that only the network leads to the first."""
    ns = namespaces
    ok = ns.run(0, f"ip link set lo up; ip link add v0 type veth peer name v1; ip link set v1 netns {ns.holders[1].pid}; "
                   "ip addr add 10.77.0.1/24 dev v0; ip link set v0 up")
    ok = ok and ns.run(1, "ip link set lo up; ip addr add 10.77.0.2/24 dev v1; ip link set v1 up")
    if not ok:
        pytest.skip("no veth pair here")
    master = master_in(cluster, ns.inside(0), ["-port=20051", "-metrics_port=20903", "-rpc_address=0.0.0.0",
                                               f"-default_kv_lease_ttl={LEASE_MS}", "-client_ttl=3"])
    time.sleep(1.0)
    address = "10.77.0.1:20051"
    other = os.path.join(cluster.folder, "run2")
    os.makedirs(other)
    # A data port leaves loopback only when that is asked for: there is no authentication between hosts yet.
    A = cluster.spawn("A", prefix=ns.inside(0), env={"EGMSTORE_DATA_ADDRESS": "10.77.0.1"})
    B = cluster.spawn("B", prefix=ns.inside(1), env={"EGMSTORE_RUNTIME_DIR": other})
    assert cluster.start_setup(A, 64 * MiB, 16 * MiB, "10.77.0.1", master=address).result(30) == 0, master.text()[-500:]
    assert cluster.start_setup(B, 0, 16 * MiB, "10.77.0.2", master=address).result(30) == 0
    assert A.op("put_many", "a", 10, 200_000) == [0] * 10
    assert B.op("get_many", "a", 10, 200_000) == ["ok"] * 10
    assert B.op("put_many", "b", 10, 200_000) == [0] * 10
    assert A.op("get_many", "b", 10, 200_000) == ["ok"] * 10
    # 'localhost' published to a master on another address is worth a warning that names it.
    C = cluster.spawn("C", prefix=ns.inside(1), env={"EGMSTORE_RUNTIME_DIR": other})
    if cluster.start_setup(C, 16 * MiB, MiB, "localhost", master=address).result(30) == 0:
        assert re.search("localhost|127.0.0.1", C.text()), "no word about a loopback name at a remote master"


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.mark.watchdog(90)
def test_B104_ipv6_in_every_address_field(cluster):
    """The address fields that are reachable from outside: master address and host names. The parser's own table is a
    unit test of src/base. Left out: the HTTP metadata server (its URL is accepted and never contacted)."""
    if not has_ipv6():
        pytest.skip("no IPv6 loopback here")
    port, metrics = free_port(), free_port()
    master = master_in(cluster, [], [f"-port={port}", f"-metrics_port={metrics}", "-rpc_address=::",
                                     f"-default_kv_lease_ttl={LEASE_MS}", "-client_ttl=3"])
    wait_for(lambda: send_raw(("::1", port), b"", 0.1)[0] != "refused", 10, "master on ::1")
    assert send_raw(("127.0.0.1", port), b"", 0.1)[0] != "refused", "a wildcard of IPv6 serves IPv4 too"
    fixed = free_port(socket.AF_INET6, "::1")
    stores = []
    for i, (name, metadata) in enumerate([(f"[::1]:{fixed}", "P2PHANDSHAKE"), ("::1", "http://[::1]:8080/metadata"),
                                          ("127.0.0.1", "P2PHANDSHAKE")]):
        s = cluster.spawn(f"S{i}")
        code = s.call("setup", name, metadata, 16 * MiB, 16 * MiB, "tcp", "", f"[::1]:{port}")
        assert code == 0, (name, s.text()[-800:])
        stores.append(s)
    hosts = [s.call("get_hostname") for s in stores]
    assert hosts[0] == f"[::1]:{fixed}" and hosts[1].startswith("[::1]:") and hosts[2].startswith("127.0.0.1:")
    for i, s in enumerate(stores):
        assert s.op("put_many", f"s{i}-", 5, 100_000, {"preferred_segment": hosts[i]}) == [0] * 5
    for i in range(3):
        for s in stores:
            assert s.op("get_many", f"s{i}-", 5, 100_000) == ["ok"] * 5
    bad = cluster.spawn("bad")
    for address in (":5", "", "h:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:abc", "a:b:c", "[::1", "[::1]x:5", "::1]:5"):
        begin = time.monotonic()
        code = bad.call("setup", "127.0.0.1", "P2PHANDSHAKE", 0, MiB, "tcp", "", address)
        assert code < 0 and time.monotonic() - begin < 31, (address, code)
    for name in ("127.0.0.1:65536", "127.0.0.1:abc", "127.0.0.1:", ":17001", "[::1", "a:b:c"):
        code = bad.call("setup", name, "P2PHANDSHAKE", 0, MiB, "tcp", "", f"127.0.0.1:{port}")
        assert code < 0, (name, code)
    assert master.alive and bad.alive


@pytest.mark.watchdog(90, long=400)
def test_B106_taken_ports_and_port_races(cluster1, long):
    port, metrics, http = free_port(), free_port(), free_port()
    for taken in ("rpc", "metrics", "http"):
        with socket.create_server(("0.0.0.0", {"rpc": port, "metrics": metrics, "http": http}[taken])):
            raw = [f"-port={port}", f"-metrics_port={metrics}"]
            if taken == "http":
                raw += ["-enable_http_metadata_server=true", f"-http_metadata_server_port={http}"]
            m = master_in(cluster1, [], raw, f"taken-{taken}")
            code = m.wait(5)
            if taken == "rpc":
                assert code not in (None, 0), "a taken RPC port must end the start"
                assert str(port) in m.text()
            elif code is not None:
                assert code != 0 and str(metrics if taken == "metrics" else http) in m.text()
            else:
                number = metrics if taken == "metrics" else http
                assert not re.search(rf"listening[^\n]*{number}", m.text(), re.I)
                assert re.search(r"disabled|in use|failed", m.text(), re.I)
            m.kill()
    cluster1.master()
    for round_ in range(10 if long else 1):
        count = 50 if long else 16
        procs = [cluster1.spawn(f"C{round_}-{i}") for i in range(count)]
        for p in procs:
            p.op("ping")
        calls = [cluster1.start_setup(p, 16 * MiB, MiB) for p in procs]
        assert [c.result(60) for c in calls] == [0] * count
        names = [p.call("get_hostname") for p in procs]
        assert len(set(names)) == count
        assert all(12300 <= int(name.rsplit(":", 1)[1]) <= 14300 for name in names), names
        for p in procs:
            p.kill()


SIZES = [("16777216", 16 * MiB), ("16MB", 16 * MiB), ("16 MB", 16 * MiB), ("0.25gb", 256 * MiB), ("16m", 16 * MiB),
         ("16MiB", 16 * MiB), (16 * MiB, 16 * MiB), ("16384K", 16 * MiB),
         ("0x10", None), ("-1", None), ("", None), ("abc", None), ("50%", None), ("1e9", None), (1.5, None), (2**63, None), (-5, None),
         ("16 MB x", None), ("18446744073709551616", None)]


@pytest.mark.watchdog(90)
def test_B109_loose_parsing_of_env_and_config_values(cluster1):
    master = cluster1.master()
    A = cluster1.spawn("A")

    def setup(w, values):
        try:
            return w.store.setup(values)
        except (TypeError, ValueError, OverflowError) as error:
            return type(error).__name__
    base = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": master.address,
            "local_buffer_size": "1MB"}
    for text, size in SIZES:
        code = A.do(setup, {**base, "global_segment_size": text})
        if size is None:
            assert code != 0, f"global_segment_size={text!r} was taken"
        else:
            assert code == 0, f"global_segment_size={text!r} gives {code}"
            # a provider may keep a granule of its segment for itself
            assert 0.99 * size <= master.metric("master_total_capacity_bytes") <= size, text
        assert A.call("close") == 0
        wait_for(lambda: not master.segments(), 3, "segment gone after close")
    small = {**base, "global_segment_size": "16MB"}
    for text in ("no", "OFF", "0", "False", False):
        assert A.do(setup, {**small, "enable_client_http_server": text}) == 0, text
        A.call("close")
    assert A.do(setup, {**small, "enable_client_http_server": "maybe"}) != 0
    A.call("close")
    assert A.do(setup, {**small, "client_http_port": "abc"}) != 0
    A.call("close")
    assert A.do(setup, {**small, "no_such_option_egm": "1"}) == 0
    assert "no_such_option_egm" in A.text()
    A.call("close")
    for missing in ("local_hostname", "metadata_server"):
        assert A.do(setup, {k: v for k, v in small.items() if k != missing}) != 0
    for i, text in enumerate(("", " 5", "5x", "-1", "999999999999999999999")):
        E = cluster1.spawn(f"E{i}", env={"MC_RPC_TIMEOUT_MS": text, "MC_STORE_CLIENT_MIN_PORT": text, "EGMSTORE_DEADLINE": text})
        assert cluster1.start_setup(E, 16 * MiB, MiB).result(30) == 0, repr(text)
        assert E.op("put_pattern", f"e{i}", 1000) == 0 and E.op("get_pattern", f"e{i}", 1000) == "ok"
        assert 12300 <= int(E.call("get_hostname").rsplit(":", 1)[1]) <= 14300
        E.call("close")


@pytest.mark.watchdog(100)
def test_B112_command_line_styles_and_old_flag_names(cluster1):
    def serves(raw, port, metrics, prefix=()):
        m = master_in(cluster1, prefix, raw)

        def up():
            return not m.alive or send_raw(("127.0.0.1", port), b"", 0.05)[0] != "refused" and http_get(metrics, "/metrics")[0] == 200
        wait_for(up, 10, f"master with {raw}")
        assert m.alive, (raw, m.text()[-500:])
        m.kill()
    for style in (["-port={p}", "-max_threads", "8", "-v=1", "-metrics_port", "{q}"],
                  ["--rpc_port", "{p}", "--enable-ha=false", "--metrics-port={q}"],
                  ["--rpc-address=127.0.0.1", "--port", "{p}", "--metrics_port", "{q}"],
                  ["--eviction_high_watermark_ratio", "0.8", "-rpc_port={p}", "-metrics_port={q}", "--eviction-ratio=0.1"],
                  ["--noenable_metric_reporting", "-port", "{p}", "--metrics_port={q}", "--logtostderr"],
                  ["--enable_metric_reporting", "-port", "{p}", "--metrics_port={q}", "--default_kv_lease_ttl=5s", "-client_ttl=10",
                   "--default_kv_soft_pin_ttl=30m", "--allow_evict_soft_pinned_objects=true", "--rpc_thread_num=4",
                   "--memory_allocator=offset", "--cluster_id=c1", "--metrics_host=127.0.0.1", "--max_kv_soft_pin_ttl=24h"]):
        port, metrics = free_port(), free_port()
        serves([part.format(p=port, q=metrics) for part in style], port, metrics)
    for raw, flag in ((["--eviction_high_watermark_ratio=1.5"], "eviction"), (["--port=70000"], "port"),
                      (["--default_kv_lease_ttl=abc"], "default_kv_lease_ttl"), (["--client_ttl=-3"], "client_ttl"),
                      (["--no_such_flag_egm=1"], "no_such_flag_egm"), (["--memory_allocator=magic"], "memory_allocator"),
                      (["--enable_ha=maybe"], "enable_ha")):
        extra = [] if raw[0].startswith("--port") else [f"-port={free_port()}"]
        m = master_in(cluster1, [], raw + extra + [f"-metrics_port={free_port()}"])
        code = m.wait(6)
        assert code not in (None, 0), f"{raw} was taken"
        assert flag in re.sub("[- ]", "_", m.text().lower()), f"{raw}: the message does not name the flag: {m.text()[-300:]}"
    m = master_in(cluster1, [], ["-version"])
    assert m.wait(6) == 0 and re.search(r"\d+\.\d+", m.text())
    m = master_in(cluster1, [], ["--help"])
    assert m.wait(6) in (0, 1) and "rpc_port" in m.text().replace("-", "_")
    no_dns = ["unshare", "-m", "sh", "-ec", 'mount --bind /dev/null /etc/hosts; mount --bind /dev/null /etc/resolv.conf; exec "$@"', "sh"]
    if subprocess.run([*no_dns, "true"], capture_output=True).returncode == 0:
        port, metrics = free_port(), free_port()
        serves([f"-port={port}", f"-metrics_port={metrics}"], port, metrics, no_dns)


@pytest.mark.watchdog(160)
def test_B113_no_master_at_setup(cluster1):
    port, metrics = free_port(), free_port()
    A = cluster1.spawn("A")
    quick = {"MC_RPC_CONNECT_TIMEOUT_MS": "3000", "MC_RPC_TIMEOUT_MS": "3000"}
    shm, threads = set(os.listdir("/dev/shm")), A.threads()

    def refused(proc, address, protocol="tcp", hostname="127.0.0.1", limit=31):
        begin = time.monotonic()
        code = proc.call("setup", hostname, "P2PHANDSHAKE", 16 * MiB, MiB, protocol, "", address, limit=limit + 5)
        assert code < 0, (address, code)
        assert time.monotonic() - begin <= limit
        assert proc.call("put", "k", b"x") < 0 and proc.call("get", "k") == b"" and proc.call("is_exist", "k") < 0
    refused(A, f"127.0.0.1:{port}")
    master = cluster1.master(port=port, metrics_port=metrics)
    assert cluster1.start_setup(A, 16 * MiB, MiB).result(30) == 0, "setup must be possible after one that failed"
    assert A.op("put_pattern", "k", 1000) == 0 and A.op("get_pattern", "k", 1000) == "ok"
    assert A.call("close") == 0
    B = cluster1.spawn("B", env=quick)
    refused(B, "no-such-host.invalid:50051")
    refused(B, master.address, protocol="foo")
    assert not master.segments(), "a set-up that failed left a segment behind"
    # A peer that is no master: it accepts and says nothing, or answers HTTP.
    with socket.create_server(("127.0.0.1", 0)) as mute:
        refused(B, f"127.0.0.1:{mute.getsockname()[1]}")
    refused(B, f"127.0.0.1:{metrics}")
    assert cluster1.start_setup(B, 16 * MiB, MiB).result(30) == 0
    assert B.call("close") == 0
    ns = Namespaces(1)
    try:
        if ns.usable and ns.run(0, "ip link set lo up; ip link add d0 type dummy; ip link set d0 up; ip addr add 10.66.0.1/24 dev d0"):
            C = cluster1.spawn("C", env=quick, prefix=ns.inside(0))
            refused(C, "10.66.0.99:50051")
            C.kill()
    finally:
        ns.close()
    assert A.threads() <= threads + 4
    assert len(set(os.listdir("/dev/shm")) - shm) <= 2


@pytest.mark.watchdog(90)
def test_B114_negative_huge_or_drifting_gauges(cluster1):
    """Left out: restore from a snapshot (not built)."""
    master = cluster1.master()
    names = ("master_allocated_bytes", "master_total_capacity_bytes", "master_key_count")

    def gauges(expect_keys=None):
        m = master.metrics()
        used, capacity, keys = (m.get(name, 0) for name in names)
        assert 0 <= used <= capacity < 2**40, (used, capacity)
        assert keys >= 0
        for name, value in m.items():
            if re.match(r"(segment|master)_[a-z_]*bytes(\{|$)", name):
                assert 0 <= value < 2**50, (name, value)
        if expect_keys is not None:
            assert keys == expect_keys == len(master.keys()), (keys, expect_keys)
            if expect_keys == 0:
                assert used == 0
        return used, capacity
    assert gauges(0) == (0, 0)
    A = cluster1.store("A", segment=64 * MiB)
    whole = gauges(0)[1]
    assert 63 * MiB <= whole <= 64 * MiB
    assert A.op("put_many", "k", 10, MiB) == [0] * 10
    used, _ = gauges(10)
    assert 10 * MiB <= used <= 11 * MiB
    for i in range(3):
        assert A.call("remove", f"k{i}") == 0
    used, _ = gauges(7)
    assert 7 * MiB <= used <= 8 * MiB
    assert A.call("upsert", "k5", b"small") == 0
    wait_for(lambda: gauges(7)[0] <= 6.5 * MiB + MiB, 3, "upsert frees the old value")
    assert A.call("put", "bad", b"") < 0
    assert A.op("put_from_pattern", "too-big", 63 * MiB, None) in (0, -200) and gauges() and A.call("remove", "too-big", force=True) in (0, -704)
    assert A.call("remove_all", force=True) >= 0
    gauges(0)
    for i in range(150):
        A.op("put_pattern", f"e{i}", MiB, "same")
    used, capacity = gauges()
    assert used <= capacity and 0 < len(master.keys()) < 150
    assert A.call("remove_all", force=True) >= 0
    gauges(0)
    B = cluster1.store("B", segment=32 * MiB)
    assert B.op("put_many", "b", 5, MiB, {"preferred_segment": B.hostname}) == [0] * 5
    assert whole + 31 * MiB <= gauges(5)[1] <= whole + 32 * MiB
    B.kill()
    wait_for(lambda: gauges()[1] == whole, 10, "capacity of the dead client gone")
    gauges(0)
    master.stop()
    time.sleep(4)
    master.cont()
    time.sleep(1.5)
    assert gauges(0)[1] == whole, "remount after a stall counts once"
    assert A.op("put_many", "z", 3, MiB) == [0] * 3
    gauges(3)
    assert A.call("close") == 0
    wait_for(lambda: gauges()[1] == 0, 3, "capacity gone after close")
    gauges(0)


@pytest.mark.watchdog(60, long=200)
def test_B115_series_of_gone_segments_stay(cluster1, long):
    master = cluster1.master()
    A = cluster1.spawn("A")

    def series():
        return {re.search(r'segment="([^"]*)"', name).group(1) for name in master.metrics() if 'segment="' in name}
    names = set()
    for cycle in range(100 if long else 20):
        assert cluster1.start_setup(A, 16 * MiB, MiB, f"127.0.0.1:{free_port()}").result(30) == 0
        A.op("put_pattern", "k", 1000)
        names.add(A.call("get_hostname"))
        if cycle % 10 == 0:
            assert series() == set(master.segments()) == {A.call("get_hostname")}
        assert A.call("close") == 0
    assert len(names) >= 15
    wait_for(lambda: series() == set(), 3, "series of gone segments removed")
