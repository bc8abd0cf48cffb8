"""Unix sockets in a directory whose path may be too long for them.

The kernel takes 107 bytes of path; a state directory can be deeper. Then the directory is opened and its sockets are reached
through /proc/self/fd, which is short and, unlike a change of directory, harms nobody else in the process.

Both services that a node offers (`plugin_registration`, `podresources`) are on such a socket: `KubeletSocket`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import grpc
import grpc.aio

from remuda.link.device_plugin_port import KUBELET_SOCKET

MAX_PATH = 107


class SocketDirectory:
    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd: int | None = os.open(path, os.O_DIRECTORY | os.O_RDONLY)

    def place(self, name: str) -> str:
        """A path that a socket call takes, good while the directory is open."""
        path = os.fspath(self.path / name)
        if len(os.fsencode(path)) <= MAX_PATH:
            return path
        if self._fd is None:
            raise OSError(f"{self.path} is closed")
        return f"/proc/self/fd/{self._fd}/{name}"

    def address(self, name: str) -> str:
        """The same for gRPC."""
        return f"unix:{self.place(name)}"

    def remove_sockets(self) -> list[str]:
        """Every socket here, whoever made it: a kubelet that starts wants all plugins to come again. Other files stay."""
        found = [p for p in sorted(self.path.iterdir()) if stat.S_ISSOCK(p.lstat().st_mode)]
        for path in found:
            path.unlink(missing_ok=True)
        return [path.name for path in found]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class KubeletSocket:
    """A gRPC service on `kubelet.sock` of a directory; whatever sockets were there are removed at its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.directory: SocketDirectory | None = None  # while it is served
        self._server: grpc.aio.Server | None = None

    async def serve(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self.directory = SocketDirectory(self._path)
        self.directory.remove_sockets()
        server = self._server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(self.directory.address(KUBELET_SOCKET))
        await server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        if self.directory is not None:
            self.directory.close()
            self.directory = None
