# SPDX-License-Identifier: Apache-2.0
"""Configuration of a store session, from a JSON file or from environment variables.

The names, defaults and errors are those that users of Mooncake know; the tables below are the one
place that states them. Sizes are 1024-based: 4294967296, "4GB", "4 gb" and "1.5g" are all
understood.
"""

import json
import logging
import os
import re
from dataclasses import dataclass, fields

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824
DEFAULT_METADATA_SERVER = "P2PHANDSHAKE"
DEFAULT_LOCAL_HOSTNAME = "localhost"
DEFAULT_PROTOCOL = "tcp"
DEFAULT_TENANT_ID = "default"
DEFAULT_CLIENT_HTTP_PORT = 9300

KNOWN_PROTOCOLS = ("tcp", "rdma", "nvlink", "rpc_only")

_UNIT_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?(b?)", re.IGNORECASE)

_logger = logging.getLogger(__name__)


def _parse_segment_size(value) -> int:
    """Bytes from an int, or from text with an optional unit. ValueError for all else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"not a size: {value!r}")
    if not isinstance(value, str):
        if value < 0:
            raise ValueError(f"a size cannot be negative: {value!r}")
        return int(value)
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f"not a size: {value!r} (write 16777216, '16MB' or '1.5GB')")
    number, unit, _ = match.groups()
    if "." not in number:
        return int(number) * _UNIT_BYTES[unit.lower()]
    if not unit:
        raise ValueError(f"a part of a byte is no size: {value!r}")
    return int(float(number) * _UNIT_BYTES[unit.lower()])


def _parse_bool(value) -> bool:
    """True and False as people write them in JSON and in the environment."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"neither true nor false: {value!r}")


def _parse_text(value) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a string: {value!r}")
    return value


def _parse_port(value) -> int:
    if isinstance(value, bool):
        raise ValueError(f"not a port: {value!r}")
    port = int(value)
    if not 0 < port < 65536:
        raise ValueError(f"not a port: {value!r}")
    return port


_PARSERS = {
    "global_segment_size": _parse_segment_size,
    "local_buffer_size": _parse_segment_size,
    "enable_ssd_offload": _parse_bool,
    "enable_client_http_server": _parse_bool,
    "client_http_port": _parse_port,
}

_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")

_FILE_DEFAULTS = {
    "global_segment_size": DEFAULT_GLOBAL_SEGMENT_SIZE,
    "local_buffer_size": DEFAULT_LOCAL_BUFFER_SIZE,
    "protocol": DEFAULT_PROTOCOL,
    "device_name": "",
}

# field -> (variable, default); None: required
_ENVIRONMENT = {
    "local_hostname": ("MOONCAKE_LOCAL_HOSTNAME", DEFAULT_LOCAL_HOSTNAME),
    "metadata_server": ("MOONCAKE_TE_META_DATA_SERVER", DEFAULT_METADATA_SERVER),
    "global_segment_size": ("MOONCAKE_GLOBAL_SEGMENT_SIZE", DEFAULT_GLOBAL_SEGMENT_SIZE),
    "local_buffer_size": ("MOONCAKE_LOCAL_BUFFER_SIZE", DEFAULT_LOCAL_BUFFER_SIZE),
    "protocol": ("MOONCAKE_PROTOCOL", DEFAULT_PROTOCOL),
    "device_name": ("MOONCAKE_DEVICE", ""),
    "master_server_address": ("MOONCAKE_MASTER", None),
    "enable_ssd_offload": ("MOONCAKE_OFFLOAD_ENABLED", False),
    "ssd_offload_path": ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", ""),
    "tenant_id": ("MOONCAKE_TENANT_ID", DEFAULT_TENANT_ID),
    "enable_client_http_server": ("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", False),
    "client_http_port": ("MOONCAKE_CLIENT_HTTP_PORT", DEFAULT_CLIENT_HTTP_PORT),
}


@dataclass
class MooncakeConfig:
    """Arguments of MooncakeDistributedStore.setup; values may be text and are checked here."""

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = DEFAULT_TENANT_ID
    enable_client_http_server: bool = False
    client_http_port: int = DEFAULT_CLIENT_HTTP_PORT

    def __post_init__(self):
        for field in fields(self):
            parse = _PARSERS.get(field.name, _parse_text)
            try:
                setattr(self, field.name, parse(getattr(self, field.name)))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{field.name}: {error}") from None
        for name in _REQUIRED:
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        self.protocol = self.protocol.lower()
        if self.protocol not in KNOWN_PROTOCOLS:
            _logger.warning(
                "unknown protocol %r, continuing; known: %s",
                self.protocol,
                ", ".join(KNOWN_PROTOCOLS),
            )

    @classmethod
    def from_file(cls, file_path) -> "MooncakeConfig":
        """Reads a JSON object; unknown keys are other programs' and ignored."""
        with open(file_path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, dict):
            raise ValueError(f"{file_path}: the configuration must be a JSON object")
        missing = [name for name in _REQUIRED if name not in content]
        if missing:
            raise ValueError(f"{file_path}: missing {', '.join(missing)}")
        known = {field.name for field in fields(cls)}
        return cls(
            **{
                **_FILE_DEFAULTS,
                **{name: value for name, value in content.items() if name in known},
            }
        )

    @classmethod
    def load_from_env(cls) -> "MooncakeConfig":
        """The file that MOONCAKE_CONFIG_PATH names; without it, one variable per field."""
        file_path = os.getenv("MOONCAKE_CONFIG_PATH")
        if file_path:
            return cls.from_file(file_path)
        values = {}
        for name, (variable, default) in _ENVIRONMENT.items():
            values[name] = os.getenv(variable, default)
            if values[name] is None:
                raise ValueError(f"neither MOONCAKE_CONFIG_PATH nor {variable} is set")
        return cls(**values)
