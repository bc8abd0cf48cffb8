"""The Registration service on `kubelet.sock`: where device plugins make themselves known to the node.

At the start every socket in the directory is removed, so each plugin sees that its node began anew and comes again. A plugin
is believed after it has been dialled: registering a socket nobody serves is refused, as are a wrong version, a name that is no
extended resource, and a socket that is connected already. Refusals are gRPC errors with the kubelet's words.
"""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import grpc.aio
import structlog

from remuda.api.errors import Refusal
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.devices.plugin_endpoint import PluginClient
from remuda.embedded.node.devices.sockets import KubeletSocket
from remuda.link.device_plugin_port import KUBELET_SOCKET, VERSION, RegisterRequest
from remuda.link.kubelet_proto import REGISTER

log = structlog.get_logger(__name__)

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_RESOURCE = re.compile(
    rf"(?P<domain>{_LABEL}(?:\.{_LABEL})*)/(?P<name>[A-Za-z0-9](?:[-\w.]{{0,61}}[A-Za-z0-9])?)", re.ASCII
)


class PluginRegistry:
    def __init__(self, directory: Path, manager: KubeletDeviceManager) -> None:
        self._socket = KubeletSocket(directory)
        self._manager = manager

    async def start(self) -> None:
        method = REGISTER
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=method.request.decode, response_serializer=method.response.encode
        )
        await self._socket.serve(method.service, {method.name: handler})

    async def stop(self) -> None:
        """As when a kubelet ends: nobody registers any more. The plugins' own sockets are theirs."""
        await self._socket.close()

    async def _register(self, request: RegisterRequest, context: grpc.aio.ServicerContext) -> None:
        try:
            await self.register(request)
        except Refusal as refusal:
            who = {"resource": request.resource_name, "endpoint": request.endpoint}
            log.warning("devices.registration_refused", reason=refusal.reason, message=refusal.message, **who)
            await context.abort(grpc.StatusCode.UNKNOWN, f"{refusal.message} {refusal.fix}".strip())

    async def register(self, request: RegisterRequest) -> None:
        """Raises Refusal."""
        validate_registration(request)
        directory = self._socket.directory
        if directory is None:
            raise Refusal("RegistryStopped", "The node takes no registrations now.", "Register again later.")
        plugin = PluginClient(directory.address(request.endpoint))
        try:
            await plugin.connect(self._manager.deadlines.dial_s)
            await self._manager.plugins.connect(request.resource_name, request.endpoint, plugin, plugin.close)
        except BaseException:
            await plugin.close()
            raise


def validate_registration(request: RegisterRequest) -> None:
    """Raises Refusal for what is wrong with the words alone."""
    if request.version != VERSION:
        raise Refusal(
            "UnsupportedVersion",
            f'requested API version "{request.version}" is not supported by kubelet. Supported version is ["{VERSION}"]',
        )
    if not device_manager_takes_resource_name(request.resource_name):
        raise Refusal("InvalidResourceName", f'the ResourceName "{request.resource_name}" is invalid')
    if not request.endpoint or "/" in request.endpoint or request.endpoint in (".", "..", KUBELET_SOCKET):
        raise Refusal(
            "InvalidEndpoint",
            f'the endpoint "{request.endpoint}" is not a socket name in the device-plugin directory.',
            "Name the file alone, without a path.",
        )


def device_manager_takes_resource_name(name: str) -> bool:
    """An extended resource: `domain/name`, and the domain is not Kubernetes' own."""
    match = _RESOURCE.fullmatch(name)
    if match is None or name.startswith("requests."):
        return False
    domain = match["domain"]
    return domain != "kubernetes.io" and not domain.endswith(".kubernetes.io") and len(f"requests.{domain}") <= 253
