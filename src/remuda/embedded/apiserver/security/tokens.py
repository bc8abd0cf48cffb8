"""The bearer token and the kubeconfig that carries it. Both are 0600; whoever can read them may do everything."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

import yaml

from remuda.api.errors import Refusal
from remuda.link.certificates import write_private_file

_BYTES = 32
CONTEXT = "remuda"


def load_security_token(path: Path) -> str:
    """The token of the file, made when there is none. Processes that ask at once get the same one."""
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
    return token or _make_token(path)


def _make_token(path: Path) -> str:
    token = secrets.token_urlsafe(_BYTES)
    mine = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    write_private_file(mine, token.encode())
    try:
        os.link(mine, path)  # unlike a rename, only the first of several succeeds
    except FileExistsError:
        made = path.read_text(encoding="ascii").strip()
        if made:
            return made
        mine.replace(path)  # an empty file is no token
    finally:
        mine.unlink(missing_ok=True)
    return token


def write_token_kubeconfig(path: Path, *, server: str, ca: bytes, token: str) -> None:
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


def apiserver_port_in_token_kubeconfig(path: Path) -> int:
    """The port of an earlier run, so that kubeconfigs handed out stay good; 0 when there was none."""
    try:
        config = yaml.safe_load(path.read_bytes())
        return int(config["clusters"][0]["cluster"]["server"].rpartition(":")[2])
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return 0
