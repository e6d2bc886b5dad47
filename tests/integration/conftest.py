# SPDX-License-Identifier: Apache-2.0
"""Fixtures and options of the black-box tests; the model is described in harness/__init__.py.

  pytest tests/integration                      short forms, over both movers
  pytest tests/integration --long               full numbers of contract/faults.md
  pytest tests/integration --mover=tcp          one mover only
Environment: EGM_TEST_PYTHON (interpreter that has the `mooncake` package), EGM_TEST_BIN (folder with
mooncake_master, egmstore), EGM_TEST_KEEP=1 (keep log folders), EGM_TEST_SHM_CHECK=0 (no /dev/shm check, for
machines where others create files there).
"""
import os
import shutil
import signal
import subprocess

import pytest

from harness.cluster import Cluster, program
from harness.proc import python

WATCHDOG_S = 60


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the full numbers of the fault contract")
    parser.addoption("--mover", choices=("map", "tcp", "both"), default="both", help="data path to test")


def pytest_configure(config):
    config.addinivalue_line("markers", "watchdog(seconds, long=seconds): limit of one test, 60 s unless given")
    config.addinivalue_line("markers", "long_only: runs with --long only")


def pytest_generate_tests(metafunc):
    if "mover" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("mover")
        metafunc.parametrize("mover", ["map", "tcp"] if chosen == "both" else [chosen])


def pytest_collection_modifyitems(config, items):
    if config.getoption("long"):
        return
    skip = pytest.mark.skip(reason="long form only (--long)")
    for item in items:
        if "long_only" in item.keywords:
            item.add_marker(skip)


class WatchdogHit(Exception):
    pass


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    mark = item.get_closest_marker("watchdog")
    limit = WATCHDOG_S
    if mark:
        limit = mark.args[0] if mark.args else WATCHDOG_S
        if item.config.getoption("long"):
            limit = mark.kwargs.get("long", limit)

    def hit(_number, _frame):
        raise WatchdogHit(f"watchdog: the test did not end within {limit} s")
    before = signal.signal(signal.SIGALRM, hit)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    cluster = getattr(item, "egm_cluster", None)
    if report.when == "call" and report.failed and cluster:
        for started in cluster.programs:
            try:
                tail = started.text()[-1500:]
            except OSError:
                continue
            state = "running" if started.alive else f"code {started.popen.poll()}"
            report.sections.append((f"{started.name} ({state}), end of log", tail))


def shm_files():
    return {e.name for e in os.scandir("/dev/shm")}


def in_use(names):
    """Those of `names` that some living process has open or mapped: another test run's, not leftovers."""
    used = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps") as maps:
                text = maps.read()
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        used |= {n for n in names if f"/dev/shm/{n}" in text or f"/dev/shm/{n}" in links}
    return used


def make_cluster(request, mover):
    before = shm_files()
    cluster = Cluster(mover, request.config.getoption("long"))
    request.node.egm_cluster = cluster
    yield cluster
    keep = os.environ.get("EGM_TEST_KEEP") == "1"
    if keep:
        shutil.copytree(cluster.folder, cluster.folder + "-kept", ignore=shutil.ignore_patterns("run"), dirs_exist_ok=True)
    strays = cluster.close()
    assert not strays, f"stray processes after the test: {strays}"
    if os.environ.get("EGM_TEST_SHM_CHECK") != "0":
        left = {n for n in shm_files() - before if not n.startswith("sem.")}
        left -= in_use(left)
        assert not left, f"/dev/shm changed: {sorted(left)}"


@pytest.fixture
def cluster(request, mover):
    """A cluster, once per mover."""
    yield from make_cluster(request, mover)


@pytest.fixture
def cluster1(request):
    """A cluster for cases where the data path does not matter."""
    yield from make_cluster(request, "map" if request.config.getoption("mover") != "tcp" else "tcp")


@pytest.fixture
def long(request):
    return request.config.getoption("long")


@pytest.fixture(scope="session", autouse=True)
def programs_present():
    """One clear message instead of many failures when nothing is installed."""
    probe = subprocess.run([python(), "-c", "import mooncake.store"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.exit(f"{python()} cannot import mooncake.store (set EGM_TEST_PYTHON): {probe.stderr.strip()[-300:]}", 2)
    if not program("mooncake_master"):
        pytest.exit("no mooncake_master found (set EGM_TEST_BIN)", 2)
