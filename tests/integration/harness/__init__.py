# SPDX-License-Identifier: Apache-2.0
"""Harness of the black-box tests: real processes, driven from pytest.

Model.  A test owns a *cluster*: a master and any number of store processes, each one a real Python interpreter
that imports `mooncake.store`.  The test talks to a process over a socket pair with small pickled frames, so it
can call any method of the store with a time limit, run several calls at once in one process, and stop
(SIGSTOP), continue, kill -9 or restart it at any moment.  Nothing here knows how the store works inside: the
only things used are the Python API, the command lines, the HTTP endpoints and /proc.

Rules that the modules keep
- Every process is started in a session of its own with EGM_TEST_ID in its environment.  At the end of a test
  all are killed and reaped; what still carries the id is a stray and fails the test.
- Every wait has a bound; a watchdog ends the test when the bounds add up to too much.
- Payloads are SHAKE-256 streams (`pattern.P`), so a wrong, stale, shifted or torn byte always shows.
- Buffers for zero-copy calls lie between two 4 KiB red zones which are looked at after every call.

Modules: pattern (payloads), worker (the child's side), proc (the parent's side), net (ports, HTTP, raw
sockets), cluster (master, stores, providers).
"""
