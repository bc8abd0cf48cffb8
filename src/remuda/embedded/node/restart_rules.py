"""What a container's exit means for it, and for its pod: its own rules first, then its own policy, then the pod's. Pure.

As the kubelet has it: `restartPolicyRules` of a container are asked in order and the first whose exit codes match decides;
`Restart` starts that container again although the pod says Never, `RestartAllContainers` takes every container of the pod down
at once, without grace, and starts the pod anew from its init containers. The pod keeps UID, address, devices and volumes.

Whether a pod is being restarted whole is read off its containers (one has ended with such a code and none has been started
since), so a node that is restarted in the middle of it goes on.
"""

from __future__ import annotations

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.embedded.node.container_record import ContainerPhase, ContainerRecord, is_sidecar_container

RESTART, RESTART_ALL = "Restart", "RestartAllContainers"
RESTARTING = "AllContainersRestarting"  # the pod condition


def restart_rule_for(spec: Container, code: int) -> str:
    """The action of the first rule that matches; "" when none does."""
    for rule in spec.restart_policy_rules:
        codes = rule.exit_codes
        if codes is not None and (code in codes.values) is (codes.operator == "In"):
            return rule.action
    return ""


def restart_policy_of(pod: Pod, spec: Container) -> str:
    """A container's own restart policy: a sidecar's is Always, an init container's never that."""
    is_init = any(c.name == spec.name for c in pod.spec.init_containers)
    if is_init and is_sidecar_container(spec):
        return "Always"
    policy = spec.restart_policy or pod.spec.restart_policy
    return "OnFailure" if is_init and policy == "Always" else policy


def container_comes_back(pod: Pod, spec: Container, code: int) -> bool:
    """Whether the container is started again after it ended with `code`."""
    if restart_rule_for(spec, code):
        return True
    policy = restart_policy_of(pod, spec)
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def restarts_whole_pod(spec: Container, record: ContainerRecord) -> bool:
    """The container has ended in a way that restarts the whole pod."""
    is_ended = record.phase is ContainerPhase.EXITED and record.exit is not None
    return is_ended and record.exit is not None and restart_rule_for(spec, record.exit.code) == RESTART_ALL
