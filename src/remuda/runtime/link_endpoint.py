"""Where agents and manager meet beside the API: the manager that leads listens with TLS and says where, agents dial.

    ConfigMap remuda-link     address, ca.crt, serverName; written by the manager that leads, read by agents before each dial
    token                     of the agent's pod, for the audience `remuda-link` alone: whoever is shown it can do nothing else

The stream makes heartbeats and signals known sooner. Nothing waits for it: a port that is taken, a ConfigMap that may not be
written or read, a token that is not there are said once, and everything goes through the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import structlog

from remuda.api.devices import Signal
from remuda.api.errors import AlreadyExists, ApiError, NotFound, Refusal
from remuda.api.kubernetes.core_v1 import ConfigMap
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.backoff import Backoff
from remuda.link.certificates import LinkCertificates
from remuda.link.progress_board import MAX_PODS, Heartbeat, ProgressBoard
from remuda.link.stream_client import Connection, LinkClient, dial_link_tcp
from remuda.link.stream_server import Hear, IsOn, LinkServer, PeerBook, Promise, no_link_stream_promise
from remuda.link.token_identity import TokenReviewer
from remuda.runtime.background_tasks import run_beside

log = structlog.get_logger(__name__)

LINK = "remuda-link"  # the ConfigMap, the server's name and the tokens' audience
PORT = 9443
ADDRESS, CA, SERVER_NAME = "address", "ca.crt", "serverName"
TOKEN_FILE = "/var/run/secrets/remuda.dev/link/token"


class LinkConfig(msgspec.Struct, frozen=True):
    """`host`: what agents dial. `cert` and `key`: files, with `ca` that signed them; none = made for this start.
    `account`: user name of the agents' service account; "" = any account that is on the node."""

    host: str
    port: int = PORT
    bind: str = "0.0.0.0"
    namespace: str = "kube-system"
    cert: str = ""
    key: str = ""
    ca: str = ""
    server_name: str = LINK
    account: str = ""


def check_manager_link_config(config: LinkConfig) -> None:
    """Refusal for files that cannot be what they should."""
    given = [bool(config.cert), bool(config.key), bool(config.ca)]
    if any(given) and not all(given):
        raise Refusal(
            "IncompleteCertificate",
            "The stream's certificate needs its key and the CA that signed it.",
            "Give all of --link-cert, --link-key and --link-ca, or none.",
        )
    for path in (config.cert, config.key, config.ca):
        if path and not Path(path).is_file():
            raise Refusal("CertificateUnreadable", f"There is no file {path}.", "Check the path.")


# --- the manager's end --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def link_served(
    config: LinkConfig,
    cluster: Cluster,
    board: ProgressBoard,
    *,
    hear: Hear,
    is_on: IsOn,
    clock: Callable[[], float],
    publish: Cluster | None = None,
    promise: Promise = no_link_stream_promise,
    peers: PeerBook | None = None,
) -> AsyncIterator[LinkServer]:
    """`publish`: the port for writing (fenced), where it is another one than for asking. `promise`: what a node is told that
    asks whether its ranks stay its own. `peers`: introduces nodes to each other."""
    users = frozenset({config.account}) if config.account else frozenset[str]()
    reviewer = TokenReviewer(cluster, clock, users, audience=LINK)
    server = LinkServer(reviewer, board, hear, is_on, promise, peers)
    try:
        tls, ca = _link_certificate(config, clock())
        port = await server.start(config.bind, config.port, tls)
    except (OSError, ssl.SSLError) as error:
        log.warning("link.not_served", bind=config.bind, port=config.port, error=str(error))
        yield server
        return
    data = {ADDRESS: f"{_bracketed_host(config.host)}:{port}", CA: ca, SERVER_NAME: config.server_name}
    log.info("link.served", address=data[ADDRESS])
    try:
        async with run_beside(_publish_link_address(publish or cluster, config.namespace, data), "link-publish"):
            yield server
    finally:
        await server.stop()


def _link_certificate(config: LinkConfig, now: float) -> tuple[ssl.SSLContext, str]:
    if config.cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(config.cert, config.key)
        return context, Path(config.ca).read_text(encoding="ascii")
    with tempfile.TemporaryDirectory(prefix="remuda-link-") as place:  # the keys live in memory only from here on
        made = LinkCertificates(Path(place))
        return made.prepare([config.server_name], now), made.ca.read_text(encoding="ascii")


async def _publish_link_address(cluster: Cluster, namespace: str, data: dict[str, str]) -> None:
    """Once it is written the work is done; until then it is tried again."""
    backoff, failures = Backoff(0.5, 30.0), 0
    body = {"metadata": {"name": LINK, "namespace": namespace}, "data": data}
    while True:
        try:
            try:
                await cluster.create(ConfigMap, body)
            except AlreadyExists:
                await cluster.patch(ConfigMap, LINK, {"data": data}, namespace)
            return
        except ApiError as error:
            failures += 1
            (log.warning if failures == 1 else log.debug)("link.not_published", error=str(error))
        await asyncio.sleep(backoff.delay(failures))


def _bracketed_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# --- the agent's end ----------------------------------------------------------------------------------------------------


def has_link_endpoint_token(token_file: str) -> bool:
    return Path(token_file).is_file()


class ManagerDialler:
    """Where the manager is now, asked of the API each time: another one may lead. OSError when it cannot be had."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    async def __call__(self) -> Connection:
        try:
            found = (await self._cluster.get(ConfigMap, LINK, self._namespace)).data
            host, _, port = found[ADDRESS].rpartition(":")
            context = ssl.create_default_context(cadata=found[CA])
            name = found.get(SERVER_NAME, LINK)
        except NotFound:
            raise OSError(f"no manager has published {self._namespace}/{LINK}") from None
        except (ApiError, KeyError, ssl.SSLError) as error:
            raise OSError(f"{self._namespace}/{LINK} cannot be used: {error}") from error
        return await dial_link_tcp(host.strip("[]"), int(port), ssl=context, server_hostname=name)()


class RelayBoard(ProgressBoard):
    """The agent's board: what launchers report goes on to the manager. `tell` is set when there is a stream. It remembers the
    pods that spoke last, for a manager that comes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.tell: Callable[[Heartbeat], None] = lambda beat: None
        self._spoke: dict[str, tuple[str, str]] = {}  # gangs by pod; who was silent longest comes first

    def report(self, beat: Heartbeat) -> None:
        super().report(beat)
        self._spoke.pop(beat.uid, None)
        self._spoke[beat.uid] = (beat.namespace, beat.gang)
        if len(self._spoke) > MAX_PODS:
            uid = next(iter(self._spoke))
            self.forget_pod(*self._spoke.pop(uid), uid)
        self.tell(beat)


@contextlib.asynccontextmanager
async def link_dialled(
    node: str,
    cluster: Cluster,
    *,
    namespace: str,
    token_file: str,
    board: RelayBoard,
    subscribe: Callable[[Callable[[str, Signal], None]], None],
) -> AsyncIterator[LinkClient]:
    """The agent's stream, for as long as the block lasts; `subscribe` brings the devices' signals."""

    def token() -> str:
        return Path(token_file).read_text(encoding="ascii").strip()  # anew each time: the kubelet renews it

    client = LinkClient(node, ManagerDialler(cluster, namespace), token, past=board.past)
    board.tell = client.beat
    subscribe(client.signal)
    try:
        async with run_beside(client.run(), "link"):
            yield client
    finally:
        board.tell = lambda beat: None
