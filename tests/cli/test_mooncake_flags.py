# SPDX-License-Identifier: Apache-2.0
"""The programs that take Mooncake's flags (faults B106, B112)."""
import json
import re
import signal
import socket
import subprocess

import pytest

from conftest import free_port, http, wait_for

MASTER = {"program": "mooncake_master"}
CLIENT = {"program": "mooncake_client"}

STYLES = [
    ["-port={p}", "-max_threads", "8", "-v=1", "-metrics_port", "{q}"],
    ["--rpc_port", "{p}", "--enable-ha=false", "--metrics-port={q}"],
    ["--rpc-address=127.0.0.1", "--port", "{p}", "--metrics_port", "{q}"],
    ["--eviction_high_watermark_ratio", "0.8", "-rpc_port={p}", "-metrics_port={q}", "--eviction-ratio=0.1"],
    ["--noenable_metric_reporting", "-port", "{p}", "--metrics_port={q}", "--logtostderr"],
    ["--enable_metric_reporting", "-port", "{p}", "--metrics_port={q}", "--default_kv_lease_ttl=5s", "-client_ttl=10",
     "--default_kv_soft_pin_ttl=30m", "--allow_evict_soft_pinned_objects=true", "--rpc_thread_num=4",
     "--memory_allocator=offset", "--cluster_id=c1", "--metrics_host=127.0.0.1", "--max_kv_soft_pin_ttl=24h"],
    ["--rpc_address=0.0.0.0", "--port={p}", "--metrics_port={q}", "--enable_oplog", "--snapshot_backup_dir=/x", "--stderrthreshold=0"],
    ["--rpc_address=::1", "--port={p}", "--metrics_port={q}"],
]


def accepts(port, host="127.0.0.1"):
    try:
        socket.create_connection((host, port), timeout=1).close()
        return True
    except OSError:
        return False


@pytest.mark.parametrize("style", STYLES, ids=range(len(STYLES)))
def test_master_starts_with_each_style(programs, style):
    port, metrics = free_port(), free_port()
    host = "::1" if "--rpc_address=::1" in style else "127.0.0.1"
    master = programs.start_until("master serving", *[part.format(p=port, q=metrics) for part in style], **MASTER)
    assert accepts(port, host)
    assert http(metrics, "/metrics")[0] == 200
    assert ("listening on 127.0.0.1 only" in master.text()) == (not any("rpc" in part and "address" in part for part in style))
    master.send_signal(signal.SIGTERM)
    assert master.wait(3) == 0


@pytest.mark.parametrize("flag, value", [
    ("eviction_high_watermark_ratio", "1.5"), ("port", "70000"), ("default_kv_lease_ttl", "abc"), ("client_ttl", "-3"),
    ("no_such_flag_egm", "1"), ("memory_allocator", "magic"), ("enable_ha", "maybe"), ("rpc_port", ""), ("cxl_size", "much"),
    ("kv_events_block_size", "-1"), ("ha_backend_type", "zookeeper"),
])
def test_master_refuses_wrong_values_by_name(programs, flag, value):
    styles = [[f"--{flag}={value}"], [f"-{flag.replace('_', '-')}={value}"]]
    if flag != "enable_ha":  # gflags' booleans take no value of their own
        styles.append([f"--{flag}", value])
    for argv in styles:
        done = programs.run(*argv, **MASTER)
        assert done.returncode == 2, done.stderr
        assert flag in done.stderr.replace("-", "_") and len(done.stderr.splitlines()) == 1


def test_version_and_help(programs):
    for kind in (MASTER, CLIENT):
        for word in ("-version", "--version"):
            done = programs.run(word, **kind)
            assert done.returncode == 0 and re.search(r"\d+\.\d+", done.stdout)
        done = programs.run("--help", **kind)
        assert done.returncode == 0 and done.stdout.startswith(f"usage: {kind['program']} ")
    assert "rpc-port" in programs.run("mooncake-master", "--help").stdout


def test_the_command_may_be_named_as_well(programs):
    """The way of the Python package's console scripts."""
    assert programs.run("mooncake-master", "--version", **MASTER).returncode == 0


def test_ignored_flags_are_named_once(programs):
    port, metrics = free_port(), free_port()
    master = programs.start_until("master serving", f"-port={port}", f"-metrics_port={metrics}", "--max_threads=4",
                                  "--enable_http_metadata_server=true", "--http_metadata_server_port=8080", "--enable_ha", **MASTER)
    lines = [line for line in master.text().splitlines() if "without effect" in line]
    assert len(lines) == 1
    assert lines[0].split("effect:")[1].split() == ["max-threads", "enable-http-metadata-server", "http-metadata-server-port",
                                                    "enable-ha"]
    assert "http metadata server disabled" in master.text() and "high availability disabled" in master.text()


def test_config_file_gives_what_the_command_line_does_not(programs):
    port, metrics, other = free_port(), free_port(), free_port()
    config = programs.folder / "master.json"
    config.write_text(json.dumps({"rpc_port": other, "metrics_port": metrics, "client_live_ttl_sec": 7,
                                  "eviction_high_watermark_ratio": 0.8, "enable_ha": False, "rpc_address": "127.0.0.1"}))
    programs.start_until("master serving", "--config_path", config, "--rpc_port", port, **MASTER)
    assert accepts(port) and not accepts(other) and http(metrics, "/health")[0] == 200
    for content, word in (({"no_such": 1}, "no_such"), ({"rpc_port": "x"}, "rpc-port"), ({"rpc_port": [1]}, "rpc_port"),
                          ({"eviction_high_watermark_ratio": 2}, "eviction"), ([], "object")):
        config.write_text(json.dumps(content))
        done = programs.run("--config_path", config, **MASTER)
        assert done.returncode == 2 and word in done.stderr, done.stderr
    config.write_text("rpc_port: 1\n")
    done = programs.run(f"--config_path={config}", **MASTER)
    assert done.returncode == 2 and "YAML" in done.stderr
    assert programs.run("--config_path=/does/not/exist", **MASTER).returncode == 2
    config.write_text(json.dumps({"rpc_port": port}) + " " * (1 << 20))
    done = programs.run(f"--config_path={config}", **MASTER)
    assert done.returncode == 2 and "at most" in done.stderr


def test_master_starts_without_names(programs):
    inside = ["unshare", "-m", "sh", "-ec", 'mount --bind /dev/null /etc/hosts; mount --bind /dev/null /etc/resolv.conf; exec "$@"',
              "sh"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespaces here")
    from conftest import BIN
    port = free_port()
    process = subprocess.Popen([*inside, BIN / "mooncake_master", f"-port={port}", "-metrics_port=0"], env=programs.env,
                               stderr=subprocess.DEVNULL)
    programs.started.append(process)
    wait_for(lambda: accepts(port), 5, "a master without name resolution")


def test_client_lends_memory_and_shows_its_ports(programs):
    master = programs.master()
    port, web = free_port(), free_port()
    client = programs.start_until("ready name=", f"-port={port}", "--master_server_address", master.address,
                                  "--global_segment_size=16 MB", "--host", "127.0.0.1", "--enable_http_server", f"--http_port={web}",
                                  "--metadata_server=P2PHANDSHAKE", "--protocol=tcp", "--local_buffer_size=0", "--threads=2", **CLIENT)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port), timeout=2) as guest:
            assert guest.recv(1) == b""
    assert client.text().count("dummy clients are not served") == 1
    assert http(web, "/health") == (200, '{"status":"ok","code":0}\n')
    assert http(web, "/nothing")[0] == 404
    assert "master_total_capacity_bytes 16777216" in http(master.metrics, "/metrics")[1]
    assert "listening on 127.0.0.1 only" not in client.text()
    client.send_signal(signal.SIGTERM)
    assert client.wait(9) == 0, client.text()


def test_client_refuses_wrong_values_by_name(programs):
    for flag, value in (("port", "0"), ("global_segment_size", "50%"), ("local_buffer_size", "1e9"), ("enable_offload", "so"),
                        ("no_such_flag", "1")):
        done = programs.run(f"--{flag}={value}", **CLIENT)
        assert done.returncode == 2 and flag in done.stderr.replace("-", "_"), done.stderr


def test_client_with_a_taken_port_fails(programs):
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = programs.run(f"--port={server.getsockname()[1]}", "--host=127.0.0.1", **CLIENT)
    assert done.returncode == 1 and "in use" in done.stderr and "--port" in done.stderr
