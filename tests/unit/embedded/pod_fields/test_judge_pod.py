"""What is refused of a pod, what is warned about, and what asks for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, Resource
from remuda.api.training import TrainingJob
from remuda.embedded.apiserver.admission.pod_defaults import pod_defaults
from remuda.embedded.pod_fields.field_table import FieldClaim
from remuda.embedded.pod_fields.judge_pod import (
    MAX_WARNINGS,
    PodHost,
    judge_pod_spec,
    pod_field_warnings,
    pod_specs_in,
)

ROOT, SOMEBODY, SIMULATED = PodHost(), PodHost(1000, 1000), PodHost(is_simulated=True)


def spec(container: JsonObject | None = None, **more: Any) -> JsonObject:
    return {"containers": [{"name": "main", "command": ["true"], **(container or {})}], **more}


def mounted(volume: JsonObject, path: str = "/scratch", **mount: Any) -> JsonObject:
    return spec({"volumeMounts": [{"name": "v", "mountPath": path, **mount}]}, volumes=[{"name": "v", **volume}])


def judged(body: JsonObject, host: PodHost = ROOT) -> list[tuple[str, str, str]]:
    return [(f.path, f.claim.value, f.reason) for f in judge_pod_spec(body, host)]


MOUNT = "spec.containers[0].volumeMounts[0]"
NOT_MOUNTED = [(MOUNT, "refused", "VolumesNotMounted")]


def test_a_plain_pod_with_all_its_defaults_asks_for_nothing() -> None:
    body = pod_defaults({"spec": spec()}, None)
    assert judged(body["spec"]) == []


@pytest.mark.parametrize(
    "volume",
    [
        {"emptyDir": {}},
        {},
        {"configMap": {"name": "c"}},
        {"secret": {"secretName": "s"}},
        {"persistentVolumeClaim": {"claimName": "c"}},
        {"hostPath": {"path": "/other"}},
        {"nfs": {"server": "s", "path": "/"}},
    ],
    ids=lambda v: next(iter(v), "none"),
)
def test_a_mount_that_would_be_the_machines_own_directory_is_refused(volume: JsonObject) -> None:
    assert judged(mounted(volume)) == NOT_MOUNTED
    simulated = judge_pod_spec(mounted(volume), SIMULATED)
    assert [f.claim for f in simulated] == [FieldClaim.WARNED]
    without_command = mounted(volume)
    del without_command["containers"][0]["command"]
    assert [f.claim for f in judge_pod_spec(without_command, ROOT)] == [FieldClaim.WARNED]


def test_a_refused_mount_names_volume_place_and_fix() -> None:
    (found,) = judge_pod_spec(mounted({"emptyDir": {}}), ROOT)
    assert found.refusal == (
        "VolumesNotMounted: volume `v` (emptyDir) is not mounted at /scratch: pods are processes of this machine, and would use "
        "the machine's own directory of that name. Use a hostPath volume whose path is the mountPath, or write below the working "
        "directory, which goes with the pod."
    )


def test_a_host_path_mounted_where_it_is_is_honoured() -> None:
    assert judged(mounted({"hostPath": {"path": "/data/"}}, "/data")) == []
    assert judged(mounted({"hostPath": {"path": "/data"}}, "/data", subPath="a")) == NOT_MOUNTED
    assert judged(mounted({"hostPath": {"path": "/data"}}, "/data", subPathExpr="$(A)")) == NOT_MOUNTED
    assert judged(mounted({"hostPath": {"path": "/data/../etc"}}, "/data")) == NOT_MOUNTED
    assert [c for _, c, _ in judged(mounted({"hostPath": {"path": "/data"}}, "/data", readOnly=True))] == ["warned"]


def test_what_nobody_asked_for_or_everybody_has_is_only_warned_about() -> None:
    token = mounted({"projected": {"sources": []}}, "/var/run/secrets/kubernetes.io/serviceaccount")
    token["volumes"][0]["name"] = token["containers"][0]["volumeMounts"][0]["name"] = "kube-api-access-x2x4z"
    assert [c for _, c, _ in judged(token)] == ["warned"]
    assert [c for _, c, _ in judged(mounted({"emptyDir": {"medium": "Memory"}}, "/dev/shm"))] == ["warned"]


def test_a_volume_that_nobody_mounts_asks_for_nothing() -> None:
    assert judged(spec(volumes=[{"name": "v", "emptyDir": {}}])) == []


def test_init_containers_are_judged_like_containers() -> None:
    body = spec(initContainers=[{"name": "i", "command": ["x"], "livenessProbe": {"exec": {"command": ["x"]}}}])
    assert judged(body) == [("spec.initContainers[0].livenessProbe", "warned", "")]


@pytest.mark.parametrize("at", ["pod", "container"])
@pytest.mark.parametrize(
    ("asked", "host", "is_refused"),
    [
        ({"runAsUser": 1000}, ROOT, True),
        ({"runAsUser": 1000}, SOMEBODY, False),
        ({"runAsUser": 0}, ROOT, False),
        ({"runAsUser": 0}, SOMEBODY, True),
        ({"runAsGroup": 5}, ROOT, True),
        ({"runAsGroup": 1000}, SOMEBODY, False),
        ({"runAsNonRoot": True}, ROOT, True),
        ({"runAsNonRoot": True}, SOMEBODY, False),
        ({"runAsNonRoot": False}, ROOT, False),
    ],
)
def test_a_pod_that_would_run_as_somebody_else_is_refused(
    at: str, asked: JsonObject, host: PodHost, is_refused: bool
) -> None:
    body = spec(securityContext=asked) if at == "pod" else spec({"securityContext": asked})
    assert [reason for _, _, reason in judged(body, host)] == (["RunsAsAnotherUser"] if is_refused else [])


def test_limits_of_devices_are_honoured_and_others_warned_about() -> None:
    assert judged(spec({"resources": {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": 1}}})) == []
    found = judged(spec({"resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Gi"}}}))
    assert found == [("spec.containers[0].resources.limits", "warned", "")]


def test_a_constraint_is_refused_and_a_wish_warned_about() -> None:
    def spread(how: str) -> JsonObject:
        return spec(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": how}])

    assert [(c, r) for _, c, r in judged(spread("DoNotSchedule"), SIMULATED)] == [("refused", "SpreadNotHonoured")]
    assert [c for _, c, _ in judged(spread("ScheduleAnyway"))] == ["warned"]


def test_what_a_process_has_anyway_is_honoured() -> None:
    ports = [{"name": "http", "containerPort": 80, "protocol": "TCP", "hostPort": 80}]
    assert (
        judged(spec({"ports": ports}, hostNetwork=True, hostPID=True, hostIPC=True, shareProcessNamespace=True)) == []
    )
    assert judged(spec({"ports": [{"containerPort": 80, "hostPort": 8080}]})) == [
        ("spec.containers[0].ports[0].hostPort", "warned", "")
    ]


def test_the_same_of_several_containers_is_told_once() -> None:
    probe = {"exec": {"command": ["x"]}}
    body = {"containers": [{"name": f"c{n}", "command": ["x"], "livenessProbe": probe} for n in range(3)]}
    (found,) = judge_pod_spec(body, ROOT)
    assert found.warning.startswith("spec.containers[0].livenessProbe (and 2 more): nothing probes")


@pytest.mark.parametrize("odd", [None, [], "x", {"containers": 5}, {"containers": [5, None]}, {"volumes": [[]]}])
def test_what_is_no_pod_breaks_nothing(odd: Any) -> None:
    assert judge_pod_spec(odd, ROOT) == []


def test_what_the_user_wrote_is_repeated_within_bounds() -> None:
    (found,) = judge_pod_spec(mounted({"emptyDir": {}}, "/" + "x" * 100_000), ROOT)
    assert len(found.refusal) < 600


# --- warnings on templates ----------------------------------------------------------------------------------------------

DEPLOYMENT = Resource("apps", "v1", "Deployment", "deployments")


def test_a_template_is_warned_about_and_told_that_its_pods_are_refused() -> None:
    body = {"spec": {"template": {"spec": {**mounted({"emptyDir": {}}), "hostname": "h"}}}}
    mount, hostname = sorted(pod_field_warnings(DEPLOYMENT, body, None, ROOT))
    assert mount.startswith("spec.template.spec.containers[0].volumeMounts[0]: pods of this template are refused: Vol")
    assert hostname.startswith("spec.template.spec.hostname: HOSTNAME is the pod's name")
    job = {"spec": {"roles": [{}, {"template": {"spec": {"hostname": "h"}}}]}}
    (said,) = pod_field_warnings(TrainingJob.resource, job, None, ROOT)
    assert said.startswith("spec.roles[1].template.spec.hostname: ")


def test_only_a_change_of_the_spec_warns_again() -> None:
    old = {"metadata": {"labels": {}}, "spec": spec(hostname="h")}
    assert pod_field_warnings(Pod.resource, {**old, "metadata": {"labels": {"a": "b"}}}, old, ROOT) == []
    assert len(pod_field_warnings(Pod.resource, {"spec": spec(hostname="g")}, old, ROOT)) == 1


def test_what_all_roles_share_warns_once_and_not_again_when_the_pods_stay() -> None:
    roles = [{"template": {"spec": {"hostname": "h"}}}, {"template": {"spec": {"hostname": "h"}}}]
    old: JsonObject = {"spec": {"roles": roles}}
    (said,) = pod_field_warnings(TrainingJob.resource, old, None, ROOT)
    assert said.startswith("spec.roles[0].template.spec.hostname (and 1 more): ")
    assert pod_field_warnings(TrainingJob.resource, {"spec": {"roles": roles, "suspend": True}}, old, ROOT) == []


def test_warnings_are_bounded() -> None:
    lots: dict[str, JsonObject] = {f"v{n}": {"emptyDir": {}} for n in range(100)}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in lots]
    body = spec({"volumeMounts": mounts}, volumes=[{"name": name, **of} for name, of in lots.items()])
    said = pod_field_warnings(Pod.resource, {"spec": body}, None, SIMULATED)
    assert len(said) == MAX_WARNINGS
    assert said[-1] == "85 more fields are not honoured here: see docs/compatibility.md"


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ({}, []),
        ({"path": "/ckpt", "volume": {"hostPath": {"path": "/ckpt"}}}, []),
        ({"path": "/ckpt", "volume": {"persistentVolumeClaim": {"claimName": "c"}}}, ["VolumesNotMounted"]),
        ({"volume": {"hostPath": {"path": "/ckpt"}}}, ["VolumesNotMounted"]),
        ({"volume": "no object"}, []),
    ],
)
def test_a_job_s_checkpoint_volume_is_judged_with_its_template(checkpoint: JsonObject, expected: list[str]) -> None:
    role = {"name": "worker", "template": {"spec": spec()}}
    body = {"spec": {"roles": [role], "checkpoint": checkpoint}}
    ((at, pods),) = pod_specs_in(TrainingJob.resource, body)
    assert at == "spec.roles[0].template.spec"
    assert [f.reason for f in judge_pod_spec(pods, ROOT) if f.claim is FieldClaim.REFUSED] == expected
