"""`MooncakeConfig`: what a client needs to set up, from a JSON file or the environment."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_GLOBAL_SEGMENT_SIZE = 3200 << 20
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30
_MUST = ("local_hostname", "metadata_server", "master_server_address")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_YES, _NO = ("true", "1", "yes", "on", "enable"), ("false", "0", "no", "off", "disable", "", "none")
_VARIABLES = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


@dataclass
class MooncakeConfig:
    """The arguments of `MooncakeDistributedStore.setup`. Sizes are bytes.

    Raises:
        ValueError: a name is empty, or a size negative.
    """

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        for name in ("protocol", *_MUST):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.strip()):
                raise ValueError(f"Config field {name!r} must be a non-empty string, not {value!r}")
        self.protocol = self.protocol.strip().lower()
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name}: {getattr(self, name)} is negative")

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        """The configuration in a JSON file.

        Raises:
            ValueError: a field is missing, or wrong.
        """
        given = json.loads(Path(file_path).read_text(encoding="utf-8"))
        for name in _MUST:
            if name not in given:
                raise ValueError(f"Missing required config field: {name}")
        return _made(given)

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """The configuration in the file that MOONCAKE_CONFIG_PATH names, or in the MOONCAKE_* variables.

        Raises:
            ValueError: neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER is set; or as `from_file`.
        """
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        given: dict[str, Any] = {
            name: os.environ[variable] for name, variable in _VARIABLES.items() if variable in os.environ
        }
        if not given.get("master_server_address"):
            raise ValueError("neither MOONCAKE_CONFIG_PATH nor MOONCAKE_MASTER is set")
        return _made({"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE"} | given)


def _made(given: Mapping[str, Any]) -> MooncakeConfig:
    texts = {name: given.get(name) for name in ("ssd_offload_path", "tenant_id")}
    return MooncakeConfig(
        local_hostname=given["local_hostname"],
        metadata_server=given["metadata_server"],
        global_segment_size=_bytes(given.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)),
        local_buffer_size=_bytes(given.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)),
        protocol=given.get("protocol", "tcp"),
        device_name=given.get("device_name", ""),
        master_server_address=given["master_server_address"],
        enable_ssd_offload=_flag(given.get("enable_ssd_offload", False)),
        ssd_offload_path=str(texts["ssd_offload_path"] or ""),
        tenant_id="default" if texts["tenant_id"] is None else str(texts["tenant_id"]),
        enable_client_http_server=_flag(given.get("enable_client_http_server", False)),
        client_http_port=int(given.get("client_http_port", 9300)),
    )


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        matched = _SIZE.fullmatch(value.strip())
        if matched is None:
            raise ValueError(f"Invalid segment size: {value!r}")
        return int(float(matched[1]) * _UNITS[matched[2].lower()])
    return int(value)


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in (*_YES, *_NO):
        raise ValueError(f"Invalid boolean value: {value!r}")
    return text in _YES
