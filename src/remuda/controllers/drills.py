"""Drill controller, where kubelets run the pods: refuses what no agent took, and deletes pods. One key per drill.

How long a drill has waited is counted from when this process saw it so: no clock but our own is asked. What it does is begun by
writing Running over Pending, guarded by the object's version, as agents do: whoever's write stood carries it out.
"""

from __future__ import annotations

from collections.abc import Callable

from remuda.api.drills import UNDER_WAY, Drill, DrillStatus, drill_status_patch, refused_drill_status
from remuda.api.errors import Conflict, NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_time
from remuda.controllers.cluster_view import ClusterView
from remuda.core.health.untaken_drills import DrillFacts, DrillPlan, plan_untaken_drill
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.informer import Informer
from remuda.kube.runtime.work_queue import WorkQueue


class DrillController:
    """A `Reconciler` keyed by the drill's name."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        drills: Informer[Drill],
        queue: WorkQueue[str],
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._view, self._drills, self._queue, self._clock = cluster, view, drills, queue, clock
        self._since: dict[tuple[str, str], float] = {}  # by uid and phase: when it was first seen so
        drills.subscribe(self._on_drill)

    def _on_drill(self, old: Drill | None, new: Drill | None) -> None:
        if old is not None and (new is None or (old.uid, old.status.phase) != (new.uid, new.status.phase)):
            self._since.pop((old.uid, old.status.phase), None)
        if new is not None and new.status.phase in UNDER_WAY:
            self._since.setdefault((new.uid, new.status.phase), self._clock())
            self._queue.add(new.name)

    async def observe(self, key: str) -> DrillFacts | None:
        drill = self._drills.get(key)
        if drill is None or drill.status.phase not in UNDER_WAY:
            return None
        since = self._since.get((drill.uid, drill.status.phase), self._clock())
        has_node = self._view.nodes.get(drill.spec.node) is not None
        pod = self._view.pods.get(drill.spec.pod, drill.spec.namespace) if drill.spec.pod else None
        return DrillFacts(drill, self._clock() - since, has_node, pod)

    def plan(self, observed: DrillFacts | None, now: float) -> tuple[Drill, DrillPlan] | None:
        return (observed.drill, plan_untaken_drill(observed)) if observed is not None else None

    async def apply(self, planned: tuple[Drill, DrillPlan] | None) -> float | None:
        if planned is None:
            return None
        drill, plan = planned
        if plan.refusal is not None:
            await self._tell(drill, refused_drill_status(plan.refusal))
        elif plan.delete is not None:
            await self._delete(drill, plan.delete)
        return plan.again_s

    async def _delete(self, drill: Drill, pod: Pod) -> None:
        begun = await self._tell(drill, DrillStatus("Running"))
        if begun is None:
            return
        status = DrillStatus("Done", "", f"Pod {pod.name} is deleted.")
        try:
            await self._cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
        except (NotFound, Conflict):
            words = f"Pod {pod.namespace}/{pod.name} was gone already."
            status = refused_drill_status(Refusal("NoSuchPod", words, "See `remuda job NAME`."))
        await self._tell(begun, status, is_guarded=False)  # what happened has happened

    async def _tell(self, drill: Drill, status: DrillStatus, *, is_guarded: bool = True) -> Drill | None:
        """The drill as it is now; None when it is gone. Conflict when somebody was faster."""
        status = DrillStatus(status.phase, status.reason, status.message, to_time(self._clock()))
        when = Preconditions(uid=drill.uid, resource_version=drill.metadata.resource_version if is_guarded else "")
        try:
            return await self._cluster.patch(
                Drill, drill.name, drill_status_patch(status), subresource="status", when=when
            )
        except NotFound:
            return None
