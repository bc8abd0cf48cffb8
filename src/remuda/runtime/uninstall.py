"""Takes Remuda off a cluster: looks, stops manager and agents, has the nodes cleaned, looks again, and does what the plan says.

Whatever ends it halfway, the next run finds what is left: each step is planned on what is there. Nothing is deleted but by name.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

import msgspec

from remuda.api.errors import ApiError, Conflict, NotFound, Refusal
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node, Pod
from remuda.api.meta import JsonObject, KObject, Resource
from remuda.api.names import LABEL_AGENT
from remuda.api.selectors import EVERYTHING, Selector, parse_selector
from remuda.api.training import TrainingJob
from remuda.controllers.quarantine_taints import TaintRules
from remuda.core.remedies.taint_rules import GROUP, KIND, PLURAL, taint_rule_name
from remuda.core.uninstall.cleaning_pods import cleaning_daemon_set
from remuda.core.uninstall.installed_objects import (
    AGENT,
    APP,
    CLEAN,
    CRD,
    DAEMON_SET,
    MANAGER,
    SYSTEM,
    InstalledObject,
    installed_objects,
    workloads_to_uninstall,
)
from remuda.core.uninstall.uninstall_plan import STOP, UninstallObserved, UninstallStep, plan_uninstall
from remuda.kube.cluster import Cluster, Preconditions

K = TypeVar("K", bound=KObject)
LOOK_S = 0.5
TRIES = 20  # of a patch that somebody else's writes keep overtaking

_kinds: dict[Resource, type[KObject]] = {}


class UntypedObject(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource]

    spec: Any = None
    status: Any = None


def untyped_kind_for_uninstall_run(resource: Resource) -> type[UntypedObject]:
    """A kind of which nothing but its name counts."""
    if resource not in _kinds:
        _kinds[resource] = type(
            resource.kind, (UntypedObject,), {"resource": resource, "__annotations__": {}}, frozen=True, kw_only=True
        )
    return _kinds[resource]  # type: ignore[return-value]


class UninstallOptions(msgspec.Struct, frozen=True):
    """`image`: to clean nodes with; "" = that of the agents' DaemonSet. `clean_nodes`: False leaves their files."""

    system: str = SYSTEM
    delete_jobs: bool = False
    clean_nodes: bool = True
    image: str = ""
    timeout_s: float = 120.0


class Uninstall:
    """`say`: told what is done, one line each. `clock`: any that never goes back."""

    def __init__(
        self, cluster: Cluster, options: UninstallOptions, *, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._say = say
        self._clock = clock

    async def observe(self) -> UninstallObserved:
        """Refusal NotInstalled when there is nothing of ours."""
        system = self._options.system
        names = [*workloads_to_uninstall(system), *installed_objects(system)]
        installed = [each for each in names if await self._is_there(each)]
        if not any(each.resource in (CRD, DAEMON_SET) or each.name == MANAGER for each in installed):
            raise Refusal(
                "NotInstalled",
                f"The cluster has neither our kinds nor a manager or agents in namespace {system}.",
                "Name their namespace: --system-namespace NAME. `remuda down` stops a cluster that `remuda up` started.",
            )
        rules = TaintRules(self._cluster)
        served = await rules.version()
        devices = await rules.ours() if served else {}
        return UninstallObserved(
            system=system,
            installed=installed,
            nodes=await self._all(Node),
            pods=await self._all(Pod),
            jobs=await self._all(Job),
            training_jobs=await self._all(TrainingJob),
            leases=await self._all(Lease, NODE_LEASE_NAMESPACE),
            taint_rules=sorted(taint_rule_name(device) for device in devices),
            taint_rule_kind=Resource(GROUP, served, KIND, PLURAL, namespaced=False) if served else None,
        )

    async def run(self) -> None:
        """Everything. Refusal ManagerStillLeads, AgentsStillRun: somebody would write what is being taken off."""
        seen = await self.observe()
        agents = await self._agents_spec(seen)
        await self._apply([step for step in self._plan(seen) if step.part == STOP])
        await self._until_stopped(
            MANAGER, "ManagerStillLeads", "Stop every manager that runs elsewhere, and try again."
        )
        await self._until_lease_is_free()
        await self._until_stopped(AGENT, "AgentsStillRun", "Stop every agent that runs elsewhere, and try again.")
        if agents is not None and self._options.clean_nodes:
            seen = await self.observe_again()  # the manager may have made pods until it had stopped
            await self._clean_nodes(agents, jobs_stay=bool(seen.gang_pods) and not self._options.delete_jobs)
        for _ in range(TRIES):
            steps = [step for step in self._plan(await self.observe_again()) if step.part != STOP]
            if not steps or await self._apply(steps):
                return
        raise Refusal("StillChanging", "Others keep writing the same objects.", "Try again.")

    async def observe_again(self) -> UninstallObserved:
        try:
            return await self.observe()
        except Refusal as refusal:
            if refusal.reason == "NotInstalled":  # it was a moment ago: everything is done
                return UninstallObserved(system=self._options.system)
            raise

    def _plan(self, seen: UninstallObserved) -> list[UninstallStep]:
        return plan_uninstall(seen, delete_jobs=self._options.delete_jobs)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _is_there(self, each: InstalledObject) -> bool:
        try:
            found = await self._cluster.get(untyped_kind_for_uninstall_run(each.resource), each.name, each.namespace)
        except NotFound:
            return False
        return not found.is_deleting

    async def _all(self, kind: type[K], namespace: str = "", labels: Selector = EVERYTHING) -> list[K]:
        """Of a kind that is not served there are none."""
        try:
            return (await self._cluster.list(kind, namespace, labels=labels)).items
        except NotFound:
            return []

    async def _agents_spec(self, seen: UninstallObserved) -> JsonObject | None:
        """The spec of the agents' DaemonSet: it says what their files are cleaned with."""
        found: JsonObject | None = None
        if any((each.resource, each.name) == (DAEMON_SET, AGENT) for each in seen.installed):
            found = (
                await self._cluster.get(untyped_kind_for_uninstall_run(DAEMON_SET), AGENT, self._options.system)
            ).spec
        elif self._options.image:
            agent = {"name": "agent", "image": self._options.image}
            selector = {LABEL_AGENT: "true"}
            pod = {"nodeSelector": selector, "tolerations": [{"operator": "Exists"}], "containers": [agent]}
            found = {"template": {"spec": pod}}
        if found is not None and self._options.image:
            found["template"]["spec"]["containers"][0]["image"] = self._options.image
        return found

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _until(self, done: Callable[[], Awaitable[bool]]) -> bool:
        ends = self._clock() + self._options.timeout_s
        while not await done():
            if self._clock() >= ends:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def _until_stopped(self, app: str, reason: str, fix: str) -> None:
        async def stopped() -> bool:
            pods = await self._all(Pod, self._options.system, parse_selector(f"{APP}={app}"))
            return not any(pod.is_live for pod in pods)

        if not await self._until(stopped):
            raise Refusal(reason, f"Pods of {app} are still there after {self._options.timeout_s:g} s.", fix)

    async def _until_lease_is_free(self) -> None:
        """Given back, gone, or not renewed for as long as it lasts."""
        seen, since = "", -math.inf

        async def free() -> bool:
            nonlocal seen, since
            try:
                lease = await self._cluster.get(Lease, MANAGER, self._options.system)
            except NotFound:
                return True
            if lease.metadata.resource_version != seen:
                seen, since = lease.metadata.resource_version, self._clock()
            return not lease.spec.holder_identity or self._clock() - since > lease.spec.lease_duration_seconds

        if not await self._until(free):
            raise Refusal(
                "ManagerStillLeads",
                f"Somebody renews the lease {self._options.system}/{MANAGER}.",
                "Stop every manager that runs elsewhere, and try again.",
            )

    async def _clean_nodes(self, agents: JsonObject, *, jobs_stay: bool) -> None:
        """Nodes that do not get ready in time are named, and hold nothing up: their files can be removed at any time later."""
        kind, system = untyped_kind_for_uninstall_run(DAEMON_SET), self._options.system
        body = {
            "metadata": {"name": CLEAN, "namespace": system},
            "spec": cleaning_daemon_set(agents, jobs_stay=jobs_stay),
        }
        await self._cluster.create(kind, body)
        self._say(f"DaemonSet {system}/{CLEAN}: removes the agents' files on their nodes")

        async def cleaned() -> bool:
            found = await self._cluster.get(kind, CLEAN, system)
            status = found.status or {}
            is_seen = status.get("observedGeneration", 0) >= found.metadata.generation
            return bool(is_seen and status.get("numberReady", 0) >= status.get("desiredNumberScheduled", 0))

        if not await self._until(cleaned):
            pods = await self._all(Pod, system, parse_selector(f"{APP}={CLEAN}"))
            late = sorted(pod.spec.node_name or pod.name for pod in pods if not _is_ready(pod))
            named = ", ".join(late[:5]) + (" ..." if len(late) > 5 else "")
            self._say(
                f"Not clean in time: {named or 'no node'}. Later: remuda agent --uninstall there (deploy/README.md)."
            )
        await self._cluster.delete(kind, CLEAN, system)

    # --- doing --------------------------------------------------------------------------------------------------------

    async def _apply(self, steps: list[UninstallStep]) -> bool:
        """False when somebody was faster: what is left is planned anew."""
        is_whole = True
        for step in steps:
            where = f"{step.namespace}/{step.name}" if step.namespace else step.name
            try:
                await self._take(step)
            except NotFound:
                continue
            except Conflict:
                is_whole = False
                continue
            except ApiError as error:
                raise Refusal(
                    "StepRefused", f"{step.resource.kind} {where}: {error.message}", "Put that right, and run it again."
                ) from None
            self._say(f"{step.resource.kind} {where}: {step.what}")
        return is_whole

    async def _take(self, step: UninstallStep) -> None:
        kind, when = untyped_kind_for_uninstall_run(step.resource), Preconditions(step.uid, step.version)
        if step.patch is None:
            await self._cluster.delete(kind, step.name, step.namespace, when=when)
        else:
            await self._cluster.patch(
                kind, step.name, step.patch, step.namespace, subresource=step.subresource, when=when
            )


def _is_ready(pod: Pod) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
