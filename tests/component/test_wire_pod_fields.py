"""Over HTTP nothing of a pod is ignored in silence: Warning headers on whatever carries pods, refusals that name the field."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.cli.session import Session
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.http_errors import api_warning_of_answer_header
from tests.component.wire_rig import APPLY, MERGE, TEAM, Wire

PODS = f"{TEAM}/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/team/deployments"
JOBS = "/apis/batch/v1/namespaces/team/jobs"
TRAINING = "/apis/remuda.dev/v1alpha1/namespaces/team/trainingjobs"
SCRATCH = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
IMAGE = '299 - "spec.containers[0].image: images are not run here'


@pytest_asyncio.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with Wire(tmp_path / "api.sock") as wire:
        yield wire


def spec(container: JsonObject | None = None, **more: Any) -> JsonObject:
    return {"containers": [{"name": "main", "image": "i", "command": ["true"], **(container or {})}], **more}


def pod(name: str = "p", container: JsonObject | None = None, **more: Any) -> JsonObject:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(container, **more)}


def templated(container: JsonObject | None = None, **more: Any) -> JsonObject:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec(container, **more)}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}


def training(container: JsonObject | None = None, **more: Any) -> JsonObject:
    body = spec(container, **more)
    del body["containers"][0]["image"]
    return {
        "apiVersion": "remuda.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "t"},
        "spec": {"roles": [{"name": "worker", "replicas": 1, "template": {"spec": body}}]},
    }


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def required(node: JsonObject) -> JsonObject:
    return {"nodeAffinity": {REQUIRED: node}}


def a_job(container: JsonObject) -> JsonObject:
    return {"metadata": {"name": "j"}, "spec": {"template": {"spec": spec(container, restartPolicy="Never")}}}


PROBE = {"livenessProbe": {"exec": {"command": ["true"]}}}


async def test_each_field_that_is_not_honoured_gets_a_warning(wire: Wire) -> None:
    answer = await wire.ask("POST", PODS, pod(container=PROBE, hostname="h"))
    assert answer.code == 201
    image, probe, hostname = sorted(answer.warnings)
    assert image.startswith(IMAGE)
    assert probe == (
        '299 - "spec.containers[0].livenessProbe: nothing probes the container: it is live while its process runs"'
    )
    assert hostname.startswith('299 - "spec.hostname: ')


async def test_a_patch_an_update_and_an_apply_warn_as_a_create_does(wire: Wire) -> None:
    created = await wire.ask("POST", DEPLOYMENTS, templated(PROBE))
    assert (created.code, len(created.warnings)) == (201, 2)
    labelled = await wire.ask("PATCH", f"{DEPLOYMENTS}/d", {"metadata": {"labels": {"x": "y"}}}, MERGE)
    assert (labelled.code, labelled.warnings) == (200, [])
    change = {"spec": {"template": {"spec": {"subdomain": "s"}}}}
    patched = await wire.ask("PATCH", f"{DEPLOYMENTS}/d", change, MERGE)
    assert (patched.code, len(patched.warnings)) == (200, 3)
    body = {**patched.body, "spec": templated(PROBE)["spec"]}
    updated = await wire.ask("PUT", f"{DEPLOYMENTS}/d", body)
    assert (updated.code, len(updated.warnings)) == (200, 2)
    applied = await wire.ask("PATCH", f"{PODS}/p?fieldManager=me", pod(container=PROBE), APPLY)
    assert (applied.code, len(applied.warnings)) == (201, 2)


@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        (DEPLOYMENTS, templated(PROBE), "spec.template.spec."),
        ("/apis/apps/v1/namespaces/team/replicasets", templated(PROBE), "spec.template.spec."),
        (JOBS, a_job(PROBE), "spec.template.spec."),
        (TRAINING, training(PROBE), "spec.roles[0].template.spec."),
    ],
    ids=["Deployment", "ReplicaSet", "Job", "TrainingJob"],
)
async def test_templates_are_warned_about(wire: Wire, path: str, body: JsonObject, at: str) -> None:
    answer = await wire.ask("POST", path, body)
    assert answer.code == 201, answer.body
    assert any(w.startswith(f'299 - "{at}containers[0].livenessProbe: ') for w in answer.warnings)


async def test_an_empty_dir_at_scratch_is_refused_by_name(wire: Wire) -> None:
    answer = await wire.ask("POST", PODS, pod(container=SCRATCH, volumes=[{"name": "scratch", "emptyDir": {}}]))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.fields == ["spec.containers[0].volumeMounts[0]"]
    assert "VolumesNotMounted: volume `scratch` (emptyDir) is not mounted at /scratch" in answer.body["message"]
    assert "Use a hostPath volume whose path is the mountPath" in answer.body["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (pod(resourceClaims=[{"name": "c", "resourceClaimName": "x"}]), "ClaimsNotHonoured"),
        (pod(securityContext={"runAsUser": 4711}), "RunsAsAnotherUser"),
        (
            pod(
                affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]}}
            ),
            "AffinityNotHonoured",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_would_do_harm_is_refused_with_reason(wire: Wire, body: JsonObject, reason: str) -> None:
    answer = await wire.ask("POST", PODS, body)
    assert answer.code == 422
    assert f"Forbidden: {reason}: " in answer.body["message"]


async def test_a_workload_is_let_in_and_told_that_its_pods_are_refused(wire: Wire) -> None:
    answer = await wire.ask("POST", DEPLOYMENTS, templated(SCRATCH, volumes=[{"name": "scratch", "emptyDir": {}}]))
    assert answer.code == 201
    assert any("pods of this template are refused: VolumesNotMounted" in warning for warning in answer.warnings)


async def test_a_training_job_is_refused_with_its_template(wire: Wire) -> None:
    refused = training(SCRATCH, volumes=[{"name": "scratch", "emptyDir": {}}])
    answer = await wire.ask("POST", TRAINING, refused)
    assert (answer.code, answer.fields) == (422, ["spec.roles[0].template.spec.containers[0].volumeMounts[0]"])
    assert (await wire.ask("POST", TRAINING, training())).code == 201
    changed = await wire.ask("PATCH", f"{TRAINING}/t", {"spec": refused["spec"]}, MERGE)
    assert changed.code == 422
    assert (await wire.ask("PATCH", f"{TRAINING}/t", {"spec": {"suspend": True}}, MERGE)).code == 200


async def test_a_gated_pod_says_so_and_cannot_be_bound(wire: Wire) -> None:
    gated = await wire.create(PODS, pod(schedulingGates=[{"name": "example.com/wait"}]))
    (condition,) = gated["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    assert (await wire.ask("POST", f"{PODS}/p/binding", binding)).code == 409
    assert (await wire.ask("PATCH", f"{PODS}/p", {"spec": {"schedulingGates": []}}, MERGE)).code == 200
    assert (await wire.ask("POST", f"{PODS}/p/binding", binding)).code == 201


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"schedulingGates": [{"name": "a b"}]}, "spec.schedulingGates[0].name"),
        ({"schedulingGates": [{"name": "g"}], "nodeName": "n1"}, "spec.nodeName"),
        ({"affinity": required({})}, "spec.affinity.nodeAffinity.REQUIRED.nodeSelectorTerms"),
        (
            {"affinity": required({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]})},
            "spec.affinity.nodeAffinity.REQUIRED.nodeSelectorTerms[0].matchExpressions[0].operator",
        ),
        (
            {"affinity": required({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]})},
            "spec.affinity.nodeAffinity.REQUIRED.nodeSelectorTerms[0].matchExpressions[0].values",
        ),
    ],
)
async def test_placement_that_makes_no_sense_is_refused(wire: Wire, asked: JsonObject, field: str) -> None:
    answer = await wire.ask("POST", PODS, pod(**asked))
    assert (answer.code, answer.fields) == (422, [field.replace("REQUIRED", REQUIRED)])


async def test_a_pod_that_names_a_node_where_it_may_not_go_is_refused(wire: Wire) -> None:
    await wire.create("/api/v1/nodes", {"metadata": {"name": "n1", "labels": {"kind": "big"}}})
    small: Any = {"nodeSelector": {"kind": "small"}}
    big: Any = {"nodeSelector": {"kind": "big"}}
    refused = await wire.ask("POST", PODS, pod(nodeName="n1", **small))
    assert (refused.code, refused.fields) == (422, ["spec.nodeName"])
    assert "NodeAffinity: node n1" in refused.body["message"]
    terms = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}
    assert (await wire.ask("POST", PODS, pod(nodeName="n1", affinity=required(terms)))).code == 422
    assert (await wire.ask("POST", PODS, pod(nodeName="n1", **big))).code == 201
    assert (await wire.ask("POST", PODS, pod("q", nodeName="unknown", **small))).code == 201


# --- what is told elsewhere ---------------------------------------------------------------------------------------------


async def test_our_own_client_hears_the_warnings(wire: Wire) -> None:
    heard: list[str] = []
    async with HttpCluster(uds=wire.path) as cluster:
        cluster.transport.warn = heard.append
        await cluster.create(Pod, {"metadata": {"name": "p", "namespace": "team"}, "spec": spec(PROBE)})
    assert [text.split(":")[0] for text in heard] == ["spec.containers[0].image", "spec.containers[0].livenessProbe"]


def test_a_command_prints_each_warning_once_and_nothing_that_steers_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = Session()
    for text in ("spec.a: no", "spec.a: no", "spec.b: \x1b[2Jno"):
        session._warn(text)
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "Warning: spec.a: no\nWarning: spec.b: \N{REPLACEMENT CHARACTER}[2Jno\n")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ('299 - "plain"', "plain"),
        ('299 - "say \\"no\\" \\\\ to it"', 'say "no" \\ to it'),
        ('299 kube "x" "Wed, 18 Nov 2026 00:00:00 GMT"', "x"),
        ('110 - "stale"', ""),
        ("299 -", ""),
    ],
)
def test_warning_headers_are_read_as_they_were_written(header: str, text: str) -> None:
    assert api_warning_of_answer_header(header) == text
