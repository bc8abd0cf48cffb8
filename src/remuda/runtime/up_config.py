"""What `remuda up` was asked for."""

from __future__ import annotations

import msgspec

from remuda.agent.orders.node_commands import parse_node_hooks
from remuda.api.errors import Refusal
from remuda.core.health.mass_silence import MassSilenceRule, check_mass_silence_rule
from remuda.core.remedies.hook_kinds import parse_hook_kinds
from remuda.runtime.device_sharing import check_cluster_device_shares, check_cluster_mig_layouts
from remuda.runtime.machine_model_files import absolute_machine_model_file, resolve_machine_model_file

RACK_LABEL = "topology.remuda.dev/rack"
MAX_NODES = 10_000


class ClusterConfig(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An embedded cluster: so many nodes of one machine model, spread evenly over racks."""

    nodes: int = 16
    racks: int = 2
    model: str = "dgx-h100"  # or the path of a model file
    runtime: str = "process"  # process | simulated
    lease_seconds: float = 8.0  # a node whose lease is older is dead; its agent fences itself at two thirds
    pull_seconds: float = 0.0  # how long a node takes to pull an image it does not have
    mass_silence: str = "wait"  # or replace: what becomes of nodes most of which fell silent at once
    mass_silence_hold_seconds: float = 600.0  # before that
    mass_silence_window_seconds: float = 30.0  # that "at once" means
    step_seconds: float = 0.5  # simulated pods only
    mig: dict[str, tuple[str, ...]] = {}  # of every node: device id or "all" -> profiles
    replicas: dict[str, int] = {}  # of every node: resource -> how often each device is offered
    checkpoints_per_node: bool = False  # nodes share no directory; their agents copy checkpoints to each other
    allow_hooks: tuple[str, ...] = ()  # commands that orders may run, as patterns; they run on this machine
    allow_hook_kinds: tuple[str, ...] = ()  # of objects that hooks may make, as apiVersion/Kind[@namespace]

    @property
    def mass_silence_rule(self) -> MassSilenceRule:
        return MassSilenceRule(self.mass_silence_window_seconds, self.mass_silence_hold_seconds, self.mass_silence)

    def node_names(self) -> list[str]:
        width = max(2, len(str(self.nodes)))
        return [f"node-{n:0{width}d}" for n in range(1, self.nodes + 1)]

    def rack_of(self, index: int) -> str:
        """Nodes of a rack are neighbours by name: 16 nodes in 2 racks puts 01..08 into rack-1."""
        per_rack = -(-self.nodes // self.racks)
        return f"rack-{index // per_rack + 1}"


def check_cluster_config(config: ClusterConfig) -> ClusterConfig:
    """The config, or a Refusal that names the option."""
    if not 1 <= config.nodes <= MAX_NODES:
        raise Refusal("InvalidNodes", f"--nodes is {config.nodes}.", f"Give a number from 1 to {MAX_NODES}.", "nodes")
    if not 1 <= config.racks <= config.nodes:
        raise Refusal(
            "InvalidRacks", f"--racks is {config.racks}.", f"Give a number from 1 to {config.nodes}.", "racks"
        )
    if config.runtime not in ("process", "simulated"):
        raise Refusal("InvalidRuntime", f"--runtime is `{config.runtime}`.", "Use process or simulated.", "runtime")
    if not 1.0 <= config.lease_seconds <= 3600:
        raise Refusal("InvalidLease", f"--lease is {config.lease_seconds:g} s.", "Give 1 to 3600 seconds.", "lease")
    check_mass_silence_rule(config.mass_silence_rule)
    model = resolve_machine_model_file(config.model)
    check_cluster_mig_layouts(model, config.mig)
    check_cluster_device_shares(model, config.mig, config.replicas)
    parse_node_hooks(config.allow_hooks)
    parse_hook_kinds(config.allow_hook_kinds)
    return msgspec.structs.replace(config, model=absolute_machine_model_file(config.model))
