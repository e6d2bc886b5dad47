# SPDX-License-Identifier: Apache-2.0
"""The package around the extension: MooncakeConfig, co-installation, console scripts, stubs."""

import ast
import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest

import mooncake
import mooncake.store
from mooncake.mooncake_config import MooncakeConfig, _parse_bool, _parse_segment_size

PACKAGE = pathlib.Path(mooncake.__file__).parent
REQUIRED = {
    "local_hostname": "h",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "m:1",
}


@pytest.fixture
def clean_env(monkeypatch):
    for name in list(os.environ):
        if name.startswith("MOONCAKE_"):
            monkeypatch.delenv(name)
    return monkeypatch


def write(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_config_from_file(tmp_path):
    config = MooncakeConfig.from_file(
        write(
            tmp_path,
            {**REQUIRED, "global_segment_size": "4gb", "protocol": "RDMA", "mode": "embedded"},
        )
    )
    assert (config.local_hostname, config.global_segment_size, config.protocol) == (
        "h",
        4 << 30,
        "rdma",
    )
    assert (config.local_buffer_size, config.device_name, config.tenant_id) == (
        1073741824,
        "",
        "default",
    )
    assert (config.enable_ssd_offload, config.client_http_port) == (False, 9300)


@pytest.mark.parametrize("missing", list(REQUIRED))
def test_config_file_needs_its_required_fields(tmp_path, missing):
    with pytest.raises(ValueError, match=missing):
        MooncakeConfig.from_file(
            write(tmp_path, {k: v for k, v in REQUIRED.items() if k != missing})
        )
    with pytest.raises(ValueError, match=missing):
        MooncakeConfig.from_file(write(tmp_path, {**REQUIRED, missing: ""}))


@pytest.mark.parametrize(
    "change",
    [
        {"global_segment_size": -1},
        {"local_buffer_size": "many"},
        {"client_http_port": 0},
        {"protocol": 5},
    ],
)
def test_config_file_refuses_bad_values(tmp_path, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        MooncakeConfig.from_file(write(tmp_path, {**REQUIRED, **change}))


def test_unknown_protocol_only_warns(tmp_path, caplog):
    assert (
        MooncakeConfig.from_file(write(tmp_path, {**REQUIRED, "protocol": "pigeon"})).protocol
        == "pigeon"
    )
    assert "pigeon" in caplog.text


def test_config_from_environment(clean_env):
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    clean_env.setenv("MOONCAKE_MASTER", "m:1")
    config = MooncakeConfig.load_from_env()
    assert (config.local_hostname, config.metadata_server) == ("localhost", "P2PHANDSHAKE")
    assert (config.global_segment_size, config.local_buffer_size, config.protocol) == (
        3355443200,
        1073741824,
        "tcp",
    )
    clean_env.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "1.5 GB")
    clean_env.setenv("MOONCAKE_OFFLOAD_ENABLED", "true")
    config = MooncakeConfig.load_from_env()
    assert (config.global_segment_size, config.enable_ssd_offload) == (3 << 29, True)


def test_environment_may_name_a_file(clean_env, tmp_path):
    clean_env.setenv("MOONCAKE_CONFIG_PATH", write(tmp_path, REQUIRED))
    assert MooncakeConfig.load_from_env().master_server_address == "m:1"


def test_sizes_and_booleans():
    assert [_parse_segment_size(v) for v in (0, "0", "10", "4GB", "4 gib", "1k", "0.5m")] == [
        0, 0, 10, 4 << 30, 4 << 30, 1024, 1 << 19,
    ]  # fmt: skip
    for bad in ("", "50%", "-1", "1.5", "0x10", "1e9", None, True, [], -5):
        with pytest.raises(ValueError):
            _parse_segment_size(bad)
    assert [_parse_bool(v) for v in ("1", "Yes", True, "off", 0, "")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    with pytest.raises(ValueError):
        _parse_bool("perhaps")


def test_upstream_beside_us_is_named_at_import(tmp_path):
    info = tmp_path / "mooncake_transfer_engine_non_cuda-0.3.13.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mooncake-transfer-engine-non-cuda\nVersion: 0.3.13\n"
    )
    script = (
        "import ctypes, os\n"
        "ctypes.CDLL(os.environ['EGMSTORE_FAKE_LIB'], mode=ctypes.RTLD_GLOBAL)\n"
        "import mooncake\n"
    )
    paths = os.pathsep.join([os.environ["EGMSTORE_PYTHON_DIR"], str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "pip uninstall mooncake-transfer-engine-non-cuda" in done.stderr


def load_scripts():
    sys.path.insert(0, str(PACKAGE.parent))
    import egmstore

    return egmstore


@pytest.mark.parametrize(
    "entry,expected",
    [("main", ["egmstore", "x"]), ("mooncake_master", ["egmstore", "mooncake-master", "x"]),
     ("mooncake_client", ["egmstore", "mooncake-client", "x"])],
)  # fmt: skip
def test_console_scripts_become_the_binary(monkeypatch, entry, expected):
    scripts = load_scripts()
    seen = []
    monkeypatch.setenv("EGMSTORE_BINARY", "/bin/true")
    monkeypatch.setattr(os, "execv", lambda path, argv: seen.append((path, argv)))
    monkeypatch.setattr(sys, "argv", ["script", "x"])
    getattr(scripts, entry)()
    assert seen == [("/bin/true", expected)]


def test_console_scripts_do_not_find_themselves(monkeypatch, tmp_path, capsys):
    scripts = load_scripts()
    script = tmp_path / "egmstore"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.delenv("EGMSTORE_BINARY", raising=False)
    monkeypatch.setattr(scripts, "_HERE", tmp_path / "a" / "b")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["script"])
    assert scripts.main() == 1
    assert "EGMSTORE_BINARY" in capsys.readouterr().err


def test_stub_and_extension_name_the_same_things():
    tree = ast.parse((PACKAGE / "store.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            real = getattr(mooncake.store, node.name)
            stub = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            assert all(hasattr(real, name) for name in stub), node.name
            if node.name == "MooncakeDistributedStore":
                absent = {
                    name
                    for name, value in vars(real).items()
                    if getattr(value, "__name__", "") == "absent"
                }
                public = {name for name in vars(real) if not name.startswith("_")} - absent
                assert public == stub - {"__init__"}
        elif isinstance(node, ast.AnnAssign):
            assert hasattr(mooncake.store, node.target.id)
    assert inspect.getdoc(mooncake.store.MooncakeDistributedStore)
