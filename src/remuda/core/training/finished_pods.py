"""The pods of a job that is over: which stay to be looked at, and which go.

A job that failed leaves the pods of its last attempt where they are, so that `kubectl logs` says why: members, and those whose
fault ended it. Their launchers are told that the job is over (`launch.protocol.End`): they end what runs and leave with 0, since
a kubelet starts a container that leaves with anything else again (restartPolicy OnFailure). A pod whose containers have
ended holds no device. They go with the job: when it is deleted, or when `ttlSecondsAfterFinished` is over.

Nothing runs on for the sake of its log: a pod that has not ended `ENDS_WITHIN_S` after its stop grace is deleted, and so is one
whose node is lost, whose place was never found, or that somebody is deleting. A job that succeeded keeps none.
"""

from __future__ import annotations

from remuda.api.meta import to_seconds
from remuda.core.gang.pod_view import PodView
from remuda.core.training.planning_context import PlanningContext

ENDS_WITHIN_S = 30.0  # an agent that restarts, and a launcher that finds it again


def clear_finished_pods(ctx: PlanningContext) -> float | None:
    """Deletes what does not stay. Seconds until one of the others has to have ended; None when all have."""
    stay = _pods_that_stay(ctx) if ctx.status.phase == "Failed" else {}
    for uid in ctx.views:
        if uid in stay:
            ctx.deletions.pop(uid, None)
        else:
            ctx.delete_pod(uid)
    if all(view.pod.is_terminal for view in stay.values()):
        return None
    return max(0.0, _ended_by(ctx) - ctx.now)


def _pods_that_stay(ctx: PlanningContext) -> dict[str, PodView]:
    last = ctx.under_way
    failed = set(last.members) if last is not None else set()
    is_late = ctx.now >= _ended_by(ctx)
    return {
        uid: view
        for uid, view in ctx.views.items()
        if (uid in ctx.member_uids or view.pod.name in failed)
        and view.is_bound
        and not (view.pod.is_deleting or view.node_dead)
        and (view.pod.is_terminal or not is_late)
    }


def _ended_by(ctx: PlanningContext) -> float:
    ended = ctx.status.finished_at
    since = to_seconds(ended) if ended is not None else ctx.now
    return since + ctx.spec.failure.stop_grace_seconds + ENDS_WITHIN_S
