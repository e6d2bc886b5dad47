# SPDX-License-Identifier: Apache-2.0
"""Ports, HTTP and raw sockets. Ports are picked below the ephemeral range, so that no outgoing connection of
another process takes one between our pick and the bind; who binds still has to cope with a loss and try again.
"""
import os
import random
import re
import socket
import urllib.error
import urllib.parse
import urllib.request


def free_port(kind=socket.AF_INET, host="127.0.0.1"):
    for _ in range(200):
        port = random.randrange(18000, 32000)
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 18000 and 32000")


def http_get(port, path, timeout=5.0, host="127.0.0.1"):
    """(status, text); connection errors as (0, reason)."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=timeout) as reply:
            return reply.status, reply.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")
    except (OSError, urllib.error.URLError) as error:
        return 0, str(error)


def parse_metrics(text):
    """Prometheus text -> {'name' or 'name{labels}': float}."""
    values = {}
    for line in text.splitlines():
        match = re.match(r"^([a-zA-Z_:][\w:]*(?:\{.*\})?)\s+(\S+)", line)
        if match:
            try:
                values[match.group(1)] = float(match.group(2))
            except ValueError:
                continue
    return values


def listen_ports(pid):
    """TCP ports on which the process listens, as (address, port)."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for name, v6 in (("tcp", False), ("tcp6", True)):
        with open(f"/proc/{pid}/net/{name}") as table:
            for row in table.readlines()[1:]:
                fields = row.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    found.append(("::1" if v6 else "127.0.0.1", int(fields[1].rsplit(":", 1)[1], 16)))
    return sorted(set(found))


def send_raw(address, data, limit=10.0, read=4096):
    """Connect, send, read until the peer closes or `read` bytes are there.
    Returns (how, bytes): how = 'closed', 'reply', 'silent' (nothing within limit) or 'refused'."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as peer:
        peer.settimeout(limit)
        got = b""
        try:
            peer.connect(address)
        except OSError:
            return "refused", b""
        try:
            peer.sendall(data)
            while len(got) < read:
                part = peer.recv(read - len(got))
                if not part:
                    return "closed", got
                got += part
            return "reply", got
        except socket.timeout:
            return ("reply" if got else "silent"), got
        except OSError:
            return "closed", got


def quote(text):
    return urllib.parse.quote(text, safe="")
