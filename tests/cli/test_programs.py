# SPDX-License-Identifier: Apache-2.0
"""Master, provider and the commands as processes."""
import json
import os
import pathlib
import signal
import socket
import struct
import time

import pytest

from conftest import free_port, http, wait_for


def frame(kind, request, payload):
    return struct.pack("<IHHIIQ", 0x314D4745, 1, kind, len(payload), 0, request) + payload


def text(value):
    return struct.pack("<H", len(value)) + value


def receive(peer):
    def exactly(n):
        data = b""
        while len(data) < n:
            part = peer.recv(n - len(data))
            assert part, "closed by the master"
            data += part
        return data
    _, _, kind, length, _, request = struct.unpack("<IHHIIQ", exactly(24))
    return kind, request, exactly(length)


def greet(address, cluster=b"egmstore"):
    peer = socket.create_connection(address, timeout=10)
    peer.sendall(frame(2, 1, struct.pack("<HHBQ", 1, 1, 1, 5) + text(cluster) + struct.pack("<Q", 0) + text(b"")))
    kind, _, payload = receive(peer)
    assert kind == 3
    return peer, struct.unpack_from("<i", payload)[0]


def test_master_ends_in_order_and_at_once(programs):
    master = programs.master()
    peer, status = greet(("127.0.0.1", master.port))
    assert status == 0
    assert os.listdir(programs.folder / "run") == [f"master-{master.port}.sock"]
    master.send_signal(signal.SIGTERM)
    assert master.wait(3) == 0
    assert peer.recv(1) == b""
    assert os.listdir(programs.folder / "run") == []
    master = programs.master()
    master.send_signal(signal.SIGINT)
    assert master.wait(3) == 0


def test_master_takes_over_the_socket_of_a_killed_one(programs):
    master = programs.master()
    master.kill()
    master.wait()
    again = programs.start_until("master serving", "master", "--port", master.port, "--metrics-port", master.metrics)
    assert os.listdir(programs.folder / "run") == [f"master-{master.port}.sock"]
    assert again.poll() is None


@pytest.mark.parametrize("taken", ["rpc", "metrics"])
def test_taken_port_ends_the_start(programs, taken):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ports = ["--port", port, "--metrics-port", 0] if taken == "rpc" else ["--port", 0, "--metrics-port", port]
        done = programs.run("master", *ports)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr and "in use" in done.stderr and "serving" not in done.stderr
    assert os.listdir(programs.folder / "run") == []


def test_insecure_bind_serves_other_addresses(programs):
    port = free_port()
    programs.start_until("master serving", "master", "--port", port, "--metrics-port", 0, "--insecure-bind", "0.0.0.0",
                         "--nounix-socket")
    assert greet(("127.0.0.2", port))[1] == 0
    other = programs.master()
    with pytest.raises(OSError):
        greet(("127.0.0.2", other.port))


def test_requester_outlives_a_stopped_master(programs):
    """B49: the master is stopped for longer than the ttl; one session's ping waits in the socket, another is silent."""
    master = programs.master("--client-ttl", "1s")
    peers = []
    for session in (11, 12):
        peer, _ = greet(("127.0.0.1", master.port))
        peer.sendall(frame(10, 2, struct.pack("<QQII", session, 1, 1, 0) + text(b"n") + text(b"default") + struct.pack("<QQ", 1, 0)))
        kind, _, payload = receive(peer)
        assert kind == 11 and struct.unpack_from("<i", payload)[0] == 0
        peers.append((session, peer))
    master.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    peers[0][1].sendall(frame(12, 3, struct.pack("<QI", 11, 0)))
    master.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    peers[1][1].sendall(frame(12, 3, struct.pack("<QI", 12, 0)))
    for session, peer in peers:
        kind, _, payload = receive(peer)
        assert (kind, struct.unpack_from("<i", payload)[0]) == (13, 0), f"session {session} was given up"
    assert "egmstore_master_stalls_total 1" in http(master.metrics, "/metrics")[1]
    # and without a stall silence does end a session
    time.sleep(1.6)
    peers[0][1].sendall(frame(12, 4, struct.pack("<QI", 11, 0)))
    assert struct.unpack_from("<i", receive(peers[0][1])[2])[0] != 0


def test_values_round_trip_through_the_commands(programs):
    master = programs.master()
    programs.provider(master)
    env = {"EGMSTORE_MASTER": master.address}
    value = os.urandom(1_000_003)
    assert programs.run("put", "a\nb", "-", stdin=value, env=env, text=False).returncode == 0
    done = programs.run("get", "a\nb", "-", env=env, text=False)
    assert done.returncode == 0 and done.stdout == value and done.stderr == b""
    path = programs.folder / "value"
    done = programs.run("get", "--json", "a\nb", path, env=env)
    assert json.loads(done.stdout) == {"key": "a\nb", "size": len(value)} and path.read_bytes() == value
    assert programs.run("put", "second", path, "--master", f"unix:{programs.folder}/run/master-{master.port}.sock").returncode == 0

    done = programs.run("exist", "a\nb", "none", "--json", env=env)
    assert done.returncode == 1 and json.loads(done.stdout) == {"a\nb": "present", "none": "absent"}
    assert programs.run("exist", "second", env=env).returncode == 0
    assert programs.run("get", "none", env=env).returncode == 1
    assert programs.run("put", "none", "/does/not/exist", env=env).returncode == 1

    lines = http(master.metrics, "/get_all_keys")[1].splitlines()
    assert sorted(lines) == ["a%0Ab", "second"]
    found = json.loads(http(master.metrics, "/query_key?key=a%0Ab")[1])
    assert found["success"] and found["data"][0]["size_"] == len(value)
    batch = json.loads(http(master.metrics, "/batch_query_keys?keys=second,none")[1])["data"]
    assert batch["second"]["ok"] and not batch["none"]["ok"]

    done = programs.run("remove", "second", "none", env=env)
    assert done.returncode == 1 and "--force" in done.stderr and "'none'" in done.stderr
    assert programs.run("remove", "--matching", "(", env=env).returncode == 1
    assert json.loads(programs.run("remove", "--matching", "^sec", "--force", "--json", env=env).stdout) == {"removed": 1}
    assert programs.run("remove", "--all", "--force", env=env).stdout == "removed 1\n"
    assert http(master.metrics, "/get_all_keys") == (200, "")


def test_pages_show_a_segment_while_it_is_there(programs):
    master = programs.master()
    provider = programs.provider(master)
    name = provider.text().split("ready name=")[1].split()[0]
    size = 16 << 20
    assert http(master.metrics, "/get_all_segments") == (200, f"{name}\n")
    assert f'segment_total_capacity_bytes{{segment="{name}"}} {size}' in http(master.metrics, "/metrics")[1]
    assert http(master.metrics, f"/query_segment?segment={name}")[1] == f"{name}\nUsed(bytes): 0\nCapacity(bytes) : {size}\n"
    detail = json.loads(http(master.metrics, "/get_segments_detail")[1])
    assert detail[0]["name"] == name and detail[0]["state"] == "ready"
    stat = json.loads(programs.run("stat", "--json", "--master", master.address).stdout)
    assert [m["state"] for m in stat["mounts"]] == ["ready"] and stat["capacity_bytes"] == size
    table = programs.run("stat", "--master", master.address).stdout
    assert name in table and "ready" in table
    provider.send_signal(signal.SIGTERM)
    assert provider.wait(9) == 0, provider.text()
    wait_for(lambda: "segment=" not in http(master.metrics, "/metrics")[1], 3, "no series of the gone segment")
    assert http(master.metrics, "/get_all_segments") == (200, "")
    assert http(master.metrics, "/api/v1/remove_all", "POST")[0] == 405


def test_top_prints_lines_without_a_terminal(programs):
    master = programs.master()
    done = programs.run("top", "--master", master.address, "--count", 3, "--interval", "100ms")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["objects"] * 3
    lines = programs.run("top", "--master", master.address, "--count", 2, "--interval", "100ms", "--json").stdout.splitlines()
    assert all("mounts" in json.loads(line) for line in lines) and len(lines) == 2


def test_another_cluster_is_refused_with_its_reason(programs):
    master = programs.master("--cluster", "blue")
    done = programs.run("stat", "--master", master.address)
    assert done.returncode == 1 and "cluster" in done.stderr
    assert programs.run("stat", "--master", master.address, "--cluster", "blue").returncode == 0
    assert programs.run("stat", "--master", master.address, env={"EGMSTORE_CLUSTER": "blue"}).returncode == 0


def test_no_master_is_one_line(programs):
    for argv in (["stat"], ["exist", "k", "--timeout", "1s"], ["top"]):
        begin = time.monotonic()
        done = programs.run(*argv, "--master", f"127.0.0.1:{free_port()}")
        assert done.returncode == 1 and "egmstore" in done.stderr and time.monotonic() - begin < 12


def test_bench_reports_ratios(programs):
    master = programs.master()
    programs.provider(master)
    done = programs.run("bench", "--master", master.address, "--keys", 8, "--size", "100KB", "--segments", 7, "--rounds", 2,
                        "--json")
    result = json.loads(done.stdout)
    assert set(result["phases"]) == {"memcpy", "put", "get", "exist"}
    assert 0 < result["phases"]["put"]["of_memcpy"] and result["size_bytes"] == 102400
    assert http(master.metrics, "/get_all_keys") == (200, "")
    done = programs.run("bench", "--master", master.address, "--keys", 64, "--size", "1MB", "--rounds", 1)
    assert done.returncode == 1 and "failed" in done.stderr, "16 MiB cannot hold 64 MiB"


def start_holder(programs, master):
    """A requester that holds the pool's memory: a bench in its rounds, stopped. Fds that are still on their way
    when it stops would be no hold: the kernel drops them with the connection."""
    holder = programs.start("bench", "--master", master.address, "--keys", 2, "--size", "1MB", "--rounds", 1000)
    maps = pathlib.Path(f"/proc/{holder.pid}/maps")
    wait_for(lambda: "egmstore-pool" in maps.read_text(), 10, "a mapping of the pool")
    holder.send_signal(signal.SIGSTOP)
    return holder


def test_second_signal_leaves_at_once(programs):
    """A stopped requester keeps its mapping, so that the drain has to wait."""
    master = programs.master()
    provider = programs.provider(master)
    start_holder(programs, master)
    provider.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert provider.poll() is None, "it must wait for its importer"
    provider.send_signal(signal.SIGTERM)
    assert provider.wait(3) not in (0, None), "not after the drain, 8 s"


def test_drain_names_who_still_holds_memory(programs):
    master = programs.master()
    provider = programs.provider(master, "--drain-timeout", "1s")
    holder = start_holder(programs, master)
    begin = time.monotonic()
    provider.send_signal(signal.SIGTERM)
    assert provider.wait(5) == 1
    assert time.monotonic() - begin < 4
    assert str(holder.pid) in provider.text().split("left without being drained")[1]
