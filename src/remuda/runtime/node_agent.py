"""`remuda agent`: the agent on a real node, beside its kubelet.

    <kubelet>/device-plugins/     the plugins' sockets and the kubelet's registry
    <kubelet>/pod-resources/      who has what, read only
    <pod logs>/                   what containers wrote, read only: its end, for jobs with a rule about it
    <state>/alloc/<devices>/      one directory per allocation: its launcher's door, mounted read-only into its container
    <state>/grants/               whose each allocation is; the agent's alone, mounted nowhere
    <state>/checkpoints/          checkpoints of jobs that name no directory of their own, one directory a job, mounted into its
                                  containers; `.remuda` in it is the agent's alone
    <state>/copies/               copies of other nodes' checkpoints; the agent's alone
    <state>/bin/                  the launcher, mounted into containers
    <state>/agent.token           which agent this is; a newer one writes its own, and this one steps aside
    <state>/*.json                device ids, the kernel log's cursor

Nothing it does at its end touches what runs: SIGTERM closes sockets, and the next agent over the same state directory takes over
every allocation, so an upgrade keeps devices and processes. When nobody has vouched for the node for a while (`node_voice`), the
children of its launchers are stopped: by then the manager may have handed their ranks on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import shlex
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from remuda.agent.agent import Agent
from remuda.agent.agent_lateness import watch_agent_lateness
from remuda.agent.config import DP, HEALTH_ONLY, AgentConfig
from remuda.agent.hardware.choose_backend import FAKE, HardwareSources, NodeHardwareConfig, open_hardware_sources
from remuda.agent.hardware.device_ids import kernel_boot_id
from remuda.agent.node_drills import AgentDrills
from remuda.agent.orders.node_commands import parse_node_hooks
from remuda.agent.orders.order_runner import OrderRules
from remuda.agent.plugin.kubelet_holdings import PodResourcesClient
from remuda.agent.plugin.preferred_devices import plugin_best_linked_devices
from remuda.api.devices import NodeDevices
from remuda.api.drills import Drill
from remuda.api.errors import NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.selectors import FieldSelector
from remuda.api.training import TrainingJob
from remuda.core.devices.links import machine_model_chooser
from remuda.core.devices.machine_models import MachineModel
from remuda.core.gang.checkpoint_dirs import NODE_CHECKPOINTS
from remuda.core.health.agent_liveness import REPORT_TIMEOUT_S
from remuda.core.health.own_stalls import OwnStalls
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer
from remuda.kube.runtime.stall_watch import watch_loop_lag
from remuda.launch.zipapp import build_zipapp
from remuda.link.drill_runner import DrillRunner
from remuda.runtime.agent_post import AgentPost
from remuda.runtime.background_tasks import run_beside
from remuda.runtime.copies_endpoint import (
    CopyConfig,
    NodeCopies,
    copies_endpoint_address_text,
    copies_endpoint_kept_clean,
)
from remuda.runtime.link_endpoint import TOKEN_FILE, RelayBoard, has_link_endpoint_token
from remuda.runtime.machine_model_files import resolve_machine_model_file
from remuda.runtime.node_name_check import check_own_node_name_exists
from remuda.runtime.node_voice import NodeVoice, NodeVoiceConfig
from remuda.runtime.peer_endpoint import PeerConfig

log = structlog.get_logger(__name__)

LAUNCHER = "remuda-launch.pyz"
SHORTEST_FENCE_S = 1.0  # its renewals come three times as often


class AgentProcessConfig(msgspec.Struct, frozen=True):
    """`model`: name or file of the machine model; "" = what the backend finds. `fence_s` 0: never fence. `report_timeouts`:
    by device, "" = of the others and of the agent itself."""

    node: str
    state: str = "/var/lib/remuda"
    kubelet_dir: str = "/var/lib/kubelet"
    backend: str = "auto"
    model: str = ""
    mode: str = DP
    mig: dict[str, tuple[str, ...]] = {}
    replicas: dict[str, int] = {}
    kubeconfig: str | None = None
    context: str = ""
    dcgm_port: int = 0
    kmsg: bool = True
    machine_root: str = "/"  # where the machine's /proc, /sys and /dev are
    fence_s: float = 25.0
    link_namespace: str = "kube-system"
    link_token: str = TOKEN_FILE  # no such file: no stream, everything goes through the API
    report_timeouts: dict[str, float] = {}
    cdi_dir: str = ""
    pod_logs: str = "/var/log/pods"
    allow_hooks: tuple[str, ...] = ()
    reboot_command: str = ""
    confirm_count: bool = False
    peers: PeerConfig = PeerConfig()
    copies: CopyConfig = CopyConfig()

    @property
    def report_timeout_s(self) -> float:
        return self.report_timeouts.get("", REPORT_TIMEOUT_S)

    @property
    def voice(self) -> NodeVoiceConfig:
        return NodeVoiceConfig(
            self.node, self.report_timeout_s, self.fence_s, self.link_namespace, self.link_token, self.peers
        )


def check_node_agent_process_config(config: AgentProcessConfig) -> None:
    """Refusal for what cannot work, before anything is touched."""
    if config.mode not in (DP, HEALTH_ONLY):
        raise Refusal("UnknownMode", f"`{config.mode}` is not a mode.", f"Say {DP} or {HEALTH_ONLY}.", "mode")
    if config.backend == FAKE and not config.model:
        raise Refusal(
            "MissingModel", "The fake backend has the devices of a model.", "Name one: --model dgx-h100.", "model"
        )
    if config.mode == HEALTH_ONLY and (config.mig or config.replicas):
        raise Refusal(
            "ContradictingOptions",
            "In health-only mode a vendor's plugin serves the devices; slices and shares are its business.",
            "Drop --mig and --replicas, or run with --mode dp.",
        )
    if 0 < config.fence_s < SHORTEST_FENCE_S:
        raise Refusal(
            "FenceTooShort",
            f"Ranks would be stopped after {config.fence_s:g} s without a word.",
            f"Give --fence-after {SHORTEST_FENCE_S:g} or more, or 0 for never.",
            "fence-after",
        )
    if config.peers.is_on:
        try:
            ipaddress.ip_address(config.peers.host)
        except ValueError:
            raise Refusal(
                "InvalidPeerHost",
                f"`{config.peers.host[:64]}` is not an IP address, and names cannot be looked up when the cluster is away.",
                "Give --peer-host the address of this node, or of the agent's pod.",
                "peer-host",
            ) from None


def parse_node_agent_replicas(texts: tuple[str, ...]) -> dict[str, int]:
    """`nvidia.com/gpu=4`; Refusal InvalidReplicas."""
    found: dict[str, int] = {}
    for text in texts:
        resource, equals, number = text.partition("=")
        if not equals or "/" not in resource or not number.isdecimal():
            raise Refusal("InvalidReplicas", f"`{text}` is not RESOURCE=N.", "Say for instance nvidia.com/gpu=4.")
        found[resource] = int(number)
    return found


def parse_node_agent_report_timeouts(texts: tuple[str, ...]) -> dict[str, float]:
    """`60` for every device, `gpu-3=120` for one; Refusal InvalidTimeout."""
    found: dict[str, float] = {}
    for text in texts:
        device, equals, number = text.rpartition("=")
        try:
            seconds = float(number)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= 86400 or (equals and not device):
            raise Refusal(
                "InvalidTimeout", f"`{text}` is not SECONDS or DEVICE=SECONDS.", "Say for instance 60 or gpu-3=120."
            )
        found[device] = seconds
    return found


def assemble_node_agent_config(config: AgentProcessConfig) -> AgentConfig:
    state, kubelet = Path(config.state), Path(config.kubelet_dir)
    return AgentConfig(
        config.node,
        str(state / "alloc"),
        str(state / NODE_CHECKPOINTS),
        mode=config.mode,
        plugin_dir=str(kubelet / "device-plugins") if config.mode == DP else "",
        launcher_dir=str(state / "bin"),
        replicas=config.replicas,
        mig=config.mig,
        report_timeout_s=config.report_timeout_s,
        report_timeouts={device: limit for device, limit in config.report_timeouts.items() if device},
        cdi_dir=config.cdi_dir,
        pod_logs=config.pod_logs,
        confirm_count=config.confirm_count,
        makes_object=False,
        rules=OrderRules(parse_node_hooks(config.allow_hooks), tuple(shlex.split(config.reboot_command))),
    )


def copies_root_of_agent_process(config: AgentProcessConfig) -> Path:
    return Path(config.state) / "copies"


def prepare_agent_dirs(state: Path) -> None:
    """The directories, and the launcher that containers are shown. Refusal DirectoryOpenToOthers: whoever can write in the state
    directory can put links there, and we are root."""
    (state / "bin").mkdir(parents=True, exist_ok=True)
    if state.stat().st_mode & 0o002:
        raise Refusal(
            "DirectoryOpenToOthers",
            f"Everybody on this machine can write in {state}.",
            f"chmod o-w {state}, or give the agent another directory with --root.",
            "root",
        )
    (state / "bin").chmod(0o755)
    # Containers reach their own part through a mount; nobody else of the machine has any business here.
    for name in ("alloc", NODE_CHECKPOINTS):
        (state / name).mkdir(exist_ok=True)
        (state / name).chmod(0o700)
    build_zipapp(state / "bin" / LAUNCHER)


@contextlib.asynccontextmanager
async def node_agent(config: AgentProcessConfig, cluster: Cluster) -> AsyncIterator[Agent]:
    """A running agent; left, it has let go of everything and ended nothing."""
    check_node_agent_process_config(config)
    prepare_agent_dirs(Path(config.state))
    post = AgentPost(Path(config.state))
    model = resolve_machine_model_file(config.model) if config.model else None
    async with _open_hardware(config, model) as hardware, contextlib.AsyncExitStack() as stack:
        backend = hardware.backend
        jobs = Informer(cluster, TrainingJob)
        bound = Informer(cluster, Pod, fields=FieldSelector((("spec.nodeName", True, config.node),)))
        board, stalls = RelayBoard(), OwnStalls()

        async def watched_pods() -> Sequence[Pod]:
            await bound.synced()  # until then a pod that is missing may be there
            return bound.items()

        await stack.enter_async_context(run_beside(watch_loop_lag(stalls, time.time, "agent"), "loop-lag"))
        agent = Agent(
            assemble_node_agent_config(config),
            cluster=cluster,
            backend=backend,
            jobs=jobs,
            board=board,
            clock=time.time,
            watched_pods=watched_pods,
            resources=PodResourcesClient(str(Path(config.kubelet_dir) / "pod-resources" / "kubelet.sock")),
            stalls=stalls,
        )
        if model is not None and agent.plugin_set is not None:
            agent.plugin_set.prefer(plugin_best_linked_devices(machine_model_chooser(model), agent.inventory))
        own = Informer(cluster, NodeDevices, fields=FieldSelector((("metadata.name", True, config.node),)))
        own.subscribe(lambda old, new: agent.quarantine(new.quarantine if new is not None else {}))
        own.subscribe(lambda old, new: agent.obey(new.orders if new is not None else {}))
        for informer in (jobs, bound, own):
            await stack.enter_async_context(run_beside(informer.run(), f"agent-{informer.kind.resource.plural}"))
        await jobs.synced()
        post.take()
        await stack.enter_async_context(run_beside(leave_agent_post_to_newer(agent, post), "place"))
        agent.launchers.has_shared_root = config.copies.is_shared
        copies: NodeCopies | None = None
        if not config.copies.is_shared:
            has_peers = config.voice.has_peers and has_link_endpoint_token(config.link_token)
            copies = NodeCopies(
                agent, jobs, cluster, config.copies, copies_root_of_agent_process(config), meets_peers=has_peers
            )
            copies.prepare()
            await stack.enter_async_context(copies_endpoint_kept_clean(copies))
            if has_peers:
                agent.renderer.door = copies_endpoint_address_text(
                    config.peers.host, config.peers.port
                )  # as it was before a restart
        await agent.start()
        stack.push_async_callback(agent.stop)
        await hardware.listen()
        if agent.holdings is not None:
            bound.subscribe(lambda old, new, nudge=agent.holdings.nudge: nudge())  # type: ignore[misc]
        voice = NodeVoice(config.voice, cluster, agent, post)
        if copies is not None:
            voice.met.append(lambda endpoint: copies.meet(endpoint, config.peers.host, config.peers.port))
        await stack.enter_async_context(run_beside(voice.run(board, backend), "voice"))
        await stack.enter_async_context(run_beside(watch_agent_lateness(backend.report), "lateness"))
        # Nothing waits for it: an API that has no drills, or does not show them to us, costs drills and nothing else.
        drills = Informer(cluster, Drill)
        site = AgentDrills(agent, kernel_boot_id(), lambda: post.is_ours)
        runner = DrillRunner(cluster, drills, site, time.time, refuses_strays=False, claims=True)
        await stack.enter_async_context(run_beside(drills.run(), "agent-drills"))
        await stack.enter_async_context(run_beside(runner.run(), "drills"))
        yield agent


@contextlib.asynccontextmanager
async def _open_hardware(config: AgentProcessConfig, model: MachineModel | None) -> AsyncIterator[HardwareSources]:
    sources = await open_hardware_sources(
        NodeHardwareConfig(
            config.node,
            Path(config.state),
            config.backend,
            model,
            root=Path(config.machine_root),
            kmsg=config.kmsg,
            dcgm_port=config.dcgm_port,
        ),
        time.time,
    )
    try:
        yield sources
    finally:
        await sources.close()


async def leave_agent_post_to_newer(agent: Agent, post: AgentPost) -> None:
    """Both may serve the kubelet for a while (an upgrade without a gap); launchers, the report and all that speaks for the node
    belong to the newer one, and it must not wait for them for longer than launchers may be silent."""
    await post.watch()
    log.warning("agent.superseded", node=agent.config.node)
    agent.step_aside()


async def serve_node_agent(config: AgentProcessConfig, on_ready: Callable[[Agent], None]) -> None:
    """Until SIGTERM or SIGINT."""
    check_node_agent_process_config(config)
    access = load_kubeconfig(config.kubeconfig, context=config.context)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with HttpCluster(access=access) as cluster:
        starting = asyncio.ensure_future(_run_agent_until(told, config, cluster, on_ready))
        waiting = asyncio.ensure_future(told.wait())
        try:
            await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                # Told to end while it waited for an API or a driver that does not come, or at its post: either way, out.
                await asyncio.wait((starting,), timeout=END_S)
        finally:
            waiting.cancel()
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting


END_S = 5.0


async def check_kinds_installed(cluster: Cluster) -> None:
    """Refusal KindNotInstalled when the API answers and does not know our kinds. One that does not answer is waited for."""
    try:
        await cluster.list(NodeDevices)
    except NotFound:
        raise Refusal(
            "KindNotInstalled",
            f"The cluster does not serve {NodeDevices.resource.plural}.{NodeDevices.resource.group}.",
            "Install our kinds first: kubectl apply -f deploy/crds.",
        ) from None
    except Exception as error:
        log.warning("agent.waits_for_api", error=str(error))


async def _run_agent_until(
    told: asyncio.Event, config: AgentProcessConfig, cluster: Cluster, on_ready: Callable[[Agent], None]
) -> None:
    await check_kinds_installed(cluster)
    await check_own_node_name_exists(cluster, config.node)
    async with node_agent(config, cluster) as agent:
        on_ready(agent)
        await told.wait()


def own_node_name() -> str:
    """As a DaemonSet says it, else the machine's own name, which is what kubelets call themselves."""
    return os.environ.get("NODE_NAME") or os.uname().nodename.lower()
