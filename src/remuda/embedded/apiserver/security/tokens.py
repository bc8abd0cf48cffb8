"""The bearer token and the kubeconfig that carries it. Both are 0600; whoever can read them may do everything."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

import yaml

from remuda.api.errors import Refusal
from remuda.link.certificates import write_private_file

_BYTES = 32
CONTEXT = "remuda"


def load_token(path: Path) -> str:
    """The token of the file, made when there is none."""
    try:
        if path.stat().st_mode & 0o077:
            raise Refusal(
                "TokenNotPrivate",
                f"{path} can be read by others.",
                f"Delete it and start again, or make it private: chmod 600 {path}",
            )
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = ""
    if not token:
        token = secrets.token_urlsafe(_BYTES)
        write_private_file(path, token.encode())
    return token


def write_kubeconfig(path: Path, *, server: str, ca: bytes, token: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT, "namespace": "default"}}],
    }
    write_private_file(path, yaml.safe_dump(config, sort_keys=False).encode())


def api_port_in_kubeconfig(path: Path) -> int:
    """The port of an earlier run, so that kubeconfigs handed out stay good; 0 when there was none."""
    try:
        config = yaml.safe_load(path.read_bytes())
        return int(config["clusters"][0]["cluster"]["server"].rpartition(":")[2])
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return 0
