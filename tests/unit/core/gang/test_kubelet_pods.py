"""The same pod in the words of a kubelet."""

from __future__ import annotations

import copy

import pytest

from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject
from remuda.core.gang.kubelet_pods import KubeletGangPodForm
from remuda.core.training.job_pods import build_job_pod
from tests.builders.gangs import JobBuilder, a_job

FORM = KubeletGangPodForm(("python3", "launch", "--"), alloc_root="/host/alloc", launcher_dir="/host/bin")


def body(job: JobBuilder, **container: object) -> JsonObject:
    made = job.template(containers=[{"name": "main", "image": "i", "command": ["train", "-x"], **container}]).build()
    return build_job_pod(made, made.spec.roles[0], 0, spare=False, domain="")


def test_the_command_runs_under_the_launcher_and_knows_its_pod() -> None:
    formed = FORM.rewrite(body(a_job().gpus(2), args=["-y"]))
    container = formed["spec"]["containers"][0]
    assert container["command"] == ["python3", "launch", "--", "train", "-x"]
    assert container["args"] == ["-y"]
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"] if "valueFrom" in e}
    assert fields == {
        "REMUDA_POD_NAME": "metadata.name",
        "REMUDA_POD_UID": "metadata.uid",
        "REMUDA_NODE": "spec.nodeName",
    }
    assert formed["metadata"]["annotations"]["remuda.dev/launch"] == "container"
    assert "volumes" not in formed["spec"], "the plugin mounts what a pod with devices needs"


def test_the_launcher_stops_its_child_within_the_pods_own_grace() -> None:
    formed = FORM.rewrite(body(a_job().gpus(1).failure(stop_grace_seconds=1)))
    env = {e["name"]: e.get("value") for e in formed["spec"]["containers"][0]["env"]}
    assert float(str(env["REMUDA_STOP_GRACE"])) < formed["spec"]["terminationGracePeriodSeconds"]


def test_a_pod_without_devices_gets_the_agents_directories_from_the_machine() -> None:
    formed = FORM.rewrite(body(a_job().gpus(0), resources={"limits": {"cpu": "1", "requests.kubernetes.io/x": "1"}}))
    container, spec = formed["spec"]["containers"][0], formed["spec"]
    assert {v["name"]: v["hostPath"]["path"] for v in spec["volumes"]} == {
        "remuda-alloc": "/host/alloc",
        "remuda-bin": "/host/bin",
    }
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    assert mounts["/run/remuda/alloc"]["subPathExpr"] == "pod-$(REMUDA_POD_UID)"
    assert mounts["/run/remuda/alloc"]["readOnly"] is True
    assert mounts["/run/remuda/bin"]["readOnly"] is True
    env = [e["name"] for e in container["env"]]
    assert {"name": "REMUDA_ALLOC_DIR", "value": "/run/remuda/alloc"} in container["env"]
    assert len(env) == len(set(env))


def test_what_the_template_says_stays_and_wins() -> None:
    formed = FORM.rewrite(
        body(
            a_job().gpus(0),
            env=[{"name": "REMUDA_NODE", "value": "mine"}, {"name": "A", "value": "$(REMUDA_POD_NAME)"}],
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
        )
    )
    env = formed["spec"]["containers"][0]["env"]
    assert [e for e in env if e["name"] == "REMUDA_NODE"] == [{"name": "REMUDA_NODE", "value": "mine"}]
    assert env[-1]["name"] == "A", "behind what it refers to"
    assert {m["mountPath"] for m in formed["spec"]["containers"][0]["volumeMounts"]} >= {"/data", "/run/remuda/alloc"}


def test_a_command_that_only_the_image_knows_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        FORM.rewrite(body(a_job().gpus(1), command=[]))
    assert refused.value.reason == "NoCommand"


def test_args_alone_are_the_command() -> None:
    container = FORM.rewrite(body(a_job().gpus(1), command=[], args=["train"]))["spec"]["containers"][0]
    assert (container["command"], container["args"]) == (["python3", "launch", "--"], ["train"])


def test_the_body_it_was_made_from_is_not_changed() -> None:
    made = body(a_job().gpus(0))
    before = copy.deepcopy(made)
    FORM.rewrite(made)
    assert made == before
