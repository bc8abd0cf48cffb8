"""NodeRollout: something done to the nodes of a pool one after another, say a new driver, that stops when it goes wrong.

Canaries first: `canary` nodes are emptied, acted on and verified before any other is touched. Then the rest, `maxUnavailable`
at a time. The first failure stops it: no other node is begun, the node that failed stays out of use, and the rest of the pool is
as it was.
A multi-node NVLink domain is one step: all of it is emptied before any of it is acted on, acted on before any is verified, and
put back into use together (unless `drain.wholeDomain` is false).
A node is verified when the labels of `expect` are there, it has as many devices as before, and a probe of each has passed.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec

from remuda.api.errors import Refusal
from remuda.api.meta import KObject, Resource
from remuda.api.names import GROUP, VERSION
from remuda.api.remedies import Drain, Hook
from remuda.api.validation.hooks import check_hook
from remuda.api.validation.remedy_policies import check_drain, check_remedy_policy_node_labels


class RolloutPhase(StrEnum):
    PENDING = "Pending"
    CANARY = "Canary"
    ROLLING = "Rolling"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"


class StepPhase(StrEnum):
    DRAINING = "Draining"
    ACTING = "Acting"
    VERIFYING = "Verifying"
    DONE = "Done"
    FAILED = "Failed"


class NodeRolloutSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`hook`: what is done to each node; {node} and {rollout} are filled into an object. `expect`: labels of the node
    afterwards."""

    hook: Hook
    selector: dict[str, str] = {}  # labels of the nodes it is for; empty = every node with devices
    canary: int = 1
    max_unavailable: str = "1"  # a number, or a share like "10%"
    expect: dict[str, str] = {}
    timeout_seconds: float = 1800.0  # of the hook
    verify_seconds: float = 900.0
    drain: Drain = Drain()
    paused: bool = False


class NodeStep(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One node of a roll-out. `devices`: how many it had before. `domain`: the nodes it goes together with; "" = itself."""

    node: str
    phase: StepPhase = StepPhase.DRAINING
    is_canary: bool = False
    devices: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    since: datetime | None = None  # in this phase
    domain: str = ""


class NodeRolloutStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    phase: RolloutPhase = RolloutPhase.PENDING
    total: int = 0
    done: int = 0
    failed: int = 0
    stopped_because: str = ""
    steps: list[NodeStep] = []  # in the order they were begun
    waiting_for: str = ""  # why nodes of a domain that are left are not begun


class NodeRollout(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A driver roll-out by canary: drain, act, verify, node by node; the first failure stops it."""

    resource: ClassVar[Resource] = Resource(
        GROUP, VERSION, "NodeRollout", "noderollouts", namespaced=False, subresources=("status",), short=("nro",)
    )

    spec: NodeRolloutSpec
    status: NodeRolloutStatus = NodeRolloutStatus()

    @property
    def is_over(self) -> bool:
        return self.status.phase in (RolloutPhase.SUCCEEDED, RolloutPhase.STOPPED)


_PLACEHOLDERS = ("node", "rollout", "action")
_BOUND = re.compile(r"[1-9][0-9]{0,8}|[1-9][0-9]?%|100%")


def check_rollout(rollout: NodeRollout) -> None:
    """Raises Refusal."""
    spec = rollout.spec
    check_hook(spec.hook, "spec.hook", _PLACEHOLDERS)
    check_remedy_policy_node_labels(spec.selector, "InvalidSelector", "spec.selector")
    check_remedy_policy_node_labels(spec.expect, "InvalidExpect", "spec.expect")
    check_drain(spec.drain)
    if not 1 <= spec.canary <= 1000:
        raise Refusal(
            "InvalidCanary", f"canary is {spec.canary}.", "Try at least one node before the others.", "spec.canary"
        )
    if not _BOUND.fullmatch(spec.max_unavailable):
        raise Refusal(
            "InvalidBound",
            f"maxUnavailable is `{spec.max_unavailable}`.",
            'Give a number above 0, or a share like "10%".',
            "spec.maxUnavailable",
        )
    if not (0 < spec.timeout_seconds <= 86_400 and 0 < spec.verify_seconds <= 86_400):
        raise Refusal(
            "InvalidTimeout", "A step takes between 0 s and a day.", "Give 1 to 86400.", "spec.timeoutSeconds"
        )
