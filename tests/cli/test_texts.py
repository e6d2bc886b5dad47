# SPDX-License-Identifier: Apache-2.0
"""Help texts, docs/config.md, usage errors."""
import json
import os
import re

import pytest

from conftest import ROOT

COMMANDS = ["master", "provider", "put", "get", "exist", "remove", "stat", "top", "info", "bench", "help", "mooncake-master",
            "mooncake-client"]
GOLDEN = ROOT / "tests" / "cli" / "golden"


def compare(path, text):
    if os.environ.get("EGM_UPDATE") == "1":
        path.write_text(text)
    assert path.read_text() == text, f"{path} is not what the program prints: EGM_UPDATE=1 rewrites it"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_golden(programs, command):
    done = programs.run(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 130
    assert "Examples:" in done.stdout
    compare(GOLDEN / f"{command}.txt", done.stdout)
    assert programs.run("help", command).stdout == done.stdout


def test_list_of_commands(programs):
    done = programs.run("help")
    compare(GOLDEN / "commands.txt", done.stdout)
    assert programs.run("--help").stdout == done.stdout
    assert programs.run().returncode == 2
    assert [line.split()[0] for line in done.stdout.split("\n\n")[1].splitlines()[1:]] == COMMANDS


def test_config_reference_is_written_from_the_tables(programs):
    compare(ROOT / "docs" / "config.md", programs.run("help", "--markdown").stdout)


def test_version(programs):
    done = programs.run("--version")
    assert done.returncode == 0 and re.match(r"egmstore \d+\.\d+", done.stdout)


@pytest.mark.parametrize("argv, word", [
    (["nonsense"], "nonsense"), (["put"], "KEY FILE"), (["put", "k"], "missing"), (["get", "a", "b", "c"], "'c'"),
    (["put", "--no-such-option=1", "k", "-"], "no-such-option"), (["master", "--port", "70000"], "--port"),
    (["master", "--kv-lease-ttl", "abc"], "--kv-lease-ttl"), (["master", "--eviction-high-watermark", "1.5"], "watermark"),
    (["master", "--insecure-bind", "a:b:c"], "--insecure-bind"), (["master", "--metrics-host", "h:1"], "--metrics-host"),
    (["provider"], "--size"), (["provider", "--size", "1MB", "--size-gib", "1"], "not both"),
    (["provider", "--size", "12"], "--size"), (["remove"], "--matching"), (["remove", "k", "--all"], "--all"),
    (["get", "--json", "k"], "FILE"), (["bench", "--size", "3", "--segments", "4"], "4 segments"), (["help", "nonsense"], "nonsense"),
])
def test_wrong_usage_is_one_line_with_a_hint(programs, argv, word):
    done = programs.run(*argv)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and word in done.stderr, done.stderr
    assert "try 'egmstore" in done.stderr


def test_bad_environment_is_named_and_ignored(programs):
    done = programs.run("info", "--json", env={"EGMSTORE_LOG": "loud"})
    assert done.returncode == 0
    done = programs.run("exist", "k", "--master", "127.0.0.1:1", "--timeout", "200ms", env={"EGMSTORE_LOG": "loud"})
    assert done.returncode == 1 and "EGMSTORE_LOG" in done.stderr


def test_info_names_what_the_build_offers(programs):
    facts = json.loads(programs.run("info", "--json").stdout)
    assert {"version", "compiler", "mover_map", "mover_tcp", "copy_policy", "checksum", "cluster"} <= set(facts)
    assert facts["mover_map"].startswith("on")
    assert json.loads(programs.run("info", "--json", env={"EGMSTORE_MAP": "0"}).stdout)["mover_map"] == "off (EGMSTORE_MAP)"
