"""Projections of the Kubernetes kinds Remuda reads and writes: Pod, Node, Namespace, Lease, Binding.

Only the fields in use are here; whatever else a manifest says is kept by the store and ignored by us.

The parts are values that no cycle can run through, so they are kept out of the garbage collector's sight (`gc=False`): a large
cluster has millions of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from remuda.api.meta import Condition, KObject, ObjectMeta, Resource


class KeyReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One key of a ConfigMap or a Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class ObjectFieldReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    field_path: str = ""


class ResourceFieldReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    resource: str = ""  # limits.cpu, requests.memory, ...
    container_name: str = ""
    divisor: int | str = ""


class EnvVarSource(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None
    field_ref: ObjectFieldReference | None = None
    resource_field_ref: ResourceFieldReference | None = None


class EnvVar(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvObjectReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    name: str = ""
    optional: bool = False


class EnvFromSource(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """All keys of a ConfigMap or a Secret, each with the prefix."""

    prefix: str = ""
    config_map_ref: EnvObjectReference | None = None
    secret_ref: EnvObjectReference | None = None


class ResourceRequirements(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    requests: dict[str, int | str] = {}
    limits: dict[str, int | str] = {}


class ExitCodes(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    operator: str = "In"  # In | NotIn
    values: list[int] = []


class RestartRule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    action: str  # Restart | RestartAllContainers
    exit_codes: ExitCodes | None = None


class Container(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    name: str = "main"
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    env_from: list[EnvFromSource] = []
    working_dir: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""  # the container's own; "Always" makes an init container a sidecar
    restart_policy_rules: list[RestartRule] = []  # before the policy; first match wins


class Toleration(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    key: str = ""
    operator: str = ""  # In | NotIn | Exists | DoesNotExist | Gt | Lt
    values: list[str] = []


class NodeSelectorTerm(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    match_expressions: list[NodeSelectorRequirement] = []
    match_fields: list[NodeSelectorRequirement] = []


class NodeSelector(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    node_selector_terms: list[NodeSelectorTerm] = []


class NodeAffinity(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    node_affinity: NodeAffinity | None = None


class PodSchedulingGate(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    name: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str = ""
    node_selector: dict[str, str] = {}
    restart_policy: str = "Always"
    scheduler_name: str = ""
    termination_grace_period_seconds: int = 30
    tolerations: list[Toleration] = []
    scheduling_group: dict[str, Any] = {}  # podGroupName: of scheduling.k8s.io
    priority: int | None = None  # as admission filled it in from the PriorityClass
    affinity: Affinity | None = None
    service_account_name: str = ""
    active_deadline_seconds: int | None = None  # from the moment its node takes it on
    scheduling_gates: list[PodSchedulingGate] = []  # while there is one, the pod is not scheduled


class ContainerStateTerminated(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerStateRunning(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    started_at: datetime | None = None


class ContainerStateWaiting(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ResourceHealth(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    resource_id: str = msgspec.field(name="resourceID", default="")
    health: str = ""  # Healthy | Unhealthy | Unknown
    message: str = ""  # at most 1024 characters


class ResourceStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Of one resource a container has: the health of each device of it."""

    name: str
    resources: list[ResourceHealth] = []


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What has a factory is required by Kubernetes, and so by the models of its client libraries: written also when empty."""

    name: str
    ready: bool = msgspec.field(default_factory=bool)
    restart_count: int = msgspec.field(default_factory=int)
    image: str = msgspec.field(default_factory=str)
    image_id: str = msgspec.field(name="imageID", default_factory=str)
    container_id: str = msgspec.field(name="containerID", default="")
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    allocated_resources_status: list[ResourceStatus] = []


class PodIP(msgspec.Struct, frozen=True, gc=False):
    ip: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    pod_ips: list[PodIP] = msgspec.field(name="podIPs", default_factory=list)
    start_time: datetime | None = None
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "Pod", "pods", subresources=("status", "binding"), short=("po",))

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_terminal(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_live(self) -> bool:
        """May still hold devices: neither finished nor gone. A terminating pod is live until its processes are."""
        return not self.is_terminal


class Taint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None


class NodeSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeSystemInfo(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """All fields are written, also empty ones: Kubernetes requires them."""

    machine_id: str = msgspec.field(name="machineID", default="")
    system_uuid: str = msgspec.field(name="systemUUID", default="")
    boot_id: str = msgspec.field(name="bootID", default="")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    kube_proxy_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class NodeAddress(msgspec.Struct, frozen=True, rename="camel", gc=False):
    type: str
    address: str


class NodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    capacity: dict[str, int | str] = {}
    allocatable: dict[str, int | str] = {}
    conditions: list[Condition] = []
    images: list[dict[str, Any]] = []
    node_info: NodeSystemInfo | None = None
    addresses: list[NodeAddress] = []


class Node(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "", "v1", "Node", "nodes", namespaced=False, subresources=("status",), short=("no",)
    )

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "", "v1", "Namespace", "namespaces", namespaced=False, subresources=("status", "finalize"), short=("ns",)
    )


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int = 0


class Lease(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """`kube-node-lease/<node>`: a node is alive while its lease is fresh."""

    resource: ClassVar[Resource] = Resource("coordination.k8s.io", "v1", "Lease", "leases")

    spec: LeaseSpec = LeaseSpec()


class ConfigMap(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "ConfigMap", "configmaps", short=("cm",))

    data: dict[str, str] = {}


class Secret(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("", "v1", "Secret", "secrets")

    data: dict[str, str] = {}  # in base64


class Binding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Puts one pod on one node. `metadata.annotations` are copied to the pod: the chosen device ids travel there."""

    target: str
    metadata: ObjectMeta = ObjectMeta()


NODE_LEASE_NAMESPACE = "kube-node-lease"
