"""What the verdict controller knows beyond one node: failures of late by domain, the domains they make suspect, and the score
that placement takes from both.

An index over informers and nothing else: every failure in it stands in `NodeDevices.history`, in a verdict (a device that is held
back) or in a Node's Ready condition, so a manager that starts anew has the same suspects after its first list.
"""

from __future__ import annotations

from collections.abc import Callable

from remuda.api.conditions import find_condition
from remuda.api.devices import DeviceState, NodeDevices, Signal, Verdict
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import to_seconds
from remuda.core.health.correlation import DomainSuspect, correlated_switch_findings, find_domain_suspects
from remuda.core.health.failure_index import (
    HELD_BACK,
    KEEP_S,
    DeviceFailure,
    RecentFailures,
    nvswitch_correlation_groups,
)
from remuda.core.state.snapshot import SUSPECT

NODE_NOT_READY = "NodeNotReady"
HOLD_BACK = frozenset({"power-cap", "power-brake", "thermal"})  # codes of what a node does to all its devices
PAUSE_S = 0.5  # between two searches: in a storm each failure would search all of them
MANY = 500  # failures from which on the pause grows with their number
HISTORY_S = 604_800.0
MAX_HISTORY_PENALTY = 50

Listener = Callable[[list[DomainSuspect]], None]


class DomainSuspicion:
    def __init__(self, penalties: dict[str, int] | None = None) -> None:
        """`penalties`: kept up to date for whoever places."""
        self.recent = RecentFailures()
        self.suspects: list[DomainSuspect] = []
        self.penalties = {} if penalties is None else penalties  # by node
        self._failures: dict[str, int] = {}  # by node, of the last week as of its last look
        self._suspected: set[str] = set()
        self._listeners: list[Listener] = []
        self._is_stale = False
        self._searched_at = float("-inf")

    def subscribe(self, listener: Listener) -> None:
        """Told whenever the suspects change."""
        self._listeners.append(listener)

    def see_node(self, old: Node | None, new: Node | None) -> bool:
        """Whether a node was lost that calls for a search: with its agent gone, nothing else may ask for one."""
        if new is None:
            if old is not None:
                self.recent.forget(old.name)
            return False
        if old is None or old.labels != new.labels:
            self._is_stale |= self.recent.place(new.name, new.labels)
        ready = find_condition(new.status.conditions, "Ready")
        if ready is None or ready.status == "True" or ready.last_transition_time is None:
            return False
        before = find_condition(old.status.conditions, "Ready") if old is not None else None
        if before is not None and before.status != "True":
            return False
        lost = DeviceFailure(to_seconds(ready.last_transition_time), new.name, reason=NODE_NOT_READY, scope="node")
        is_news = self.recent.add(lost)
        self._is_stale |= is_news
        return is_news

    def see_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is None:
            return
        if (
            old is None
            or old.observed.links != new.observed.links
            or len(old.observed.devices) != len(new.observed.devices)
        ):
            whole = sum(not d.parent for d in new.observed.devices)
            self._is_stale |= self.recent.join(new.name, nvswitch_correlation_groups(new.observed.links), whole)
        if new.history and (old is None or old.history != new.history):
            self.see_failures(new)

    def see_held_back(self, node: NodeDevices) -> None:
        """Devices that have not failed, but are slowed by what may hold back all of their node."""
        for v in node.verdicts:
            if v.state is DeviceState.DEGRADED and v.since is not None and v.origin[1] in HOLD_BACK:
                held = DeviceFailure(to_seconds(v.since), node.name, v.device, v.reason, HELD_BACK)
                self._is_stale |= self.recent.add(held)

    def see_failures(self, node: NodeDevices) -> None:
        """Those that the node's history has, and the index not yet."""
        verdicts = {v.device: v for v in node.verdicts}
        for device, history in node.history.items():
            for at in history.failures:
                reason, scope = _failure_cause(verdicts.get(device))
                failure = DeviceFailure(to_seconds(at), node.name, device, reason, scope)
                self._is_stale |= self.recent.add(failure)

    def score(self, node: NodeDevices, now: float) -> None:
        """The node's own failures speak against it for a week."""
        count = sum(now - to_seconds(at) < HISTORY_S for h in node.history.values() for at in h.failures)
        if count != self._failures.get(node.name, 0):
            self._failures[node.name] = count
            self._weigh_node(node.name)

    def search(self, now: float) -> float | None:
        """Looks for suspects if there is a reason to. Returns when to look again."""
        over = self._suspicion_ends_at()
        if not self._is_stale and (over is None or now <= over):
            return over
        pause = PAUSE_S * max(1.0, len(self.recent) / MANY)
        if now - self._searched_at < pause:
            return self._searched_at + pause
        self._searched_at, self._is_stale = now, False
        self.recent.expire(now)
        suspects = find_domain_suspects(self.recent)
        if suspects != self.suspects:
            self.suspects = suspects
            self._reweigh_suspects()
            for listener in self._listeners:
                listener(suspects)
        return self._suspicion_ends_at()

    def _suspicion_ends_at(self) -> float | None:
        """When the first suspicion ends by itself."""
        return min((s.since + KEEP_S for s in self.suspects), default=None)

    def neighbours(self, node: str) -> dict[str, Signal]:
        """Devices of the node that share a failed switch."""
        return correlated_switch_findings(self.recent, self.suspects, node) if self.suspects else {}

    def _reweigh_suspects(self) -> None:
        before, self._suspected = self._suspected, {node for s in self.suspects for node in s.every}
        for node in before ^ self._suspected:
            self._weigh_node(node)

    def _weigh_node(self, node: str) -> None:
        score = min(self._failures.get(node, 0), MAX_HISTORY_PENALTY)
        score += SUSPECT if node in self._suspected else 0
        if score:
            self.penalties[node] = score
        else:
            self.penalties.pop(node, None)


def _failure_cause(verdict: Verdict | None) -> tuple[str, str]:
    if verdict is None or verdict.state is not DeviceState.UNHEALTHY:
        return "", "device"
    return verdict.reason, verdict.scope
