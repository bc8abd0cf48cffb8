"""The same pod in the words of a kubelet."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from remuda import launch
from remuda.agent.allocation import device_grants
from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.api.training import Checkpoint
from remuda.core.gang import kubelet_pods
from remuda.core.gang.kubelet_pods import KubeletGangPodForm
from remuda.core.training.job_pods import build_job_pod
from tests.builders.gangs import JobBuilder, a_job

FORM = KubeletGangPodForm(
    ("python3", "launch", "--"),
    alloc_root="/host/alloc",
    launcher_dir="/host/bin",
    checkpoint_root="/host/checkpoints",
)
OWN = "/host/checkpoints/default/job-"


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
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_launcher_stops_its_child_within_the_pods_own_grace() -> None:
    formed = FORM.rewrite(body(a_job().gpus(1).failure(stop_grace_seconds=1)))
    env = {e["name"]: e.get("value") for e in formed["spec"]["containers"][0]["env"]}
    assert float(str(env["REMUDA_STOP_GRACE"])) < formed["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("gpus", [0, 1])
def test_launcher_and_door_come_from_the_machine_whoever_hands_out_devices(gpus: int) -> None:
    """A vendor's plugin brings devices and nothing of ours. Paths of our own plugin's mounts stay free for those."""
    formed = FORM.rewrite(body(a_job().gpus(gpus)))
    container, spec = formed["spec"]["containers"][0], formed["spec"]
    hosts = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"]}
    assert (hosts["remuda-alloc"], hosts["remuda-bin"]) == ("/host/alloc", "/host/bin")
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    assert mounts["/run/remuda/pod"]["subPathExpr"] == "pod-$(REMUDA_POD_UID)"
    assert mounts["/run/remuda/pod"]["readOnly"] is True
    assert mounts["/run/remuda/launch"]["readOnly"] is True
    assert not {"/run/remuda/alloc", "/run/remuda/bin"} & mounts.keys()
    env = [e["name"] for e in container["env"]]
    assert {"name": "REMUDA_ALLOC_DIR", "value": "/run/remuda/pod"} in container["env"]
    assert len(env) == len(set(env))


# --- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoint_mount(formed: JsonObject) -> tuple[JsonObject, str] | None:
    """What is mounted for checkpoints, and where."""
    spec = formed["spec"]
    volumes = [v for v in spec["volumes"] if v["name"] == "remuda-checkpoints"]
    mounts = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "remuda-checkpoints"]
    assert len(volumes) == len(mounts) <= 1
    return ({k: v for k, v in volumes[0].items() if k != "name"}, mounts[0]["mountPath"]) if mounts else None


def test_without_a_volume_the_job_s_directory_of_the_node_is_mounted_where_it_is() -> None:
    """A pod that comes after another on the same node finds its checkpoints, and the path is the one launchers are told."""
    found = checkpoint_mount(FORM.rewrite(body(a_job().gpus(1))))
    assert found is not None
    source, path = found
    assert source["hostPath"] == {"path": path, "type": "DirectoryOrCreate"}
    assert path.startswith(OWN)


def test_a_path_that_nobody_mounts_anything_at_is_on_the_node_s_disk() -> None:
    found = checkpoint_mount(FORM.rewrite(body(a_job().gpus(1)), Checkpoint(path="/ckpt")))
    assert found is not None
    assert (found[0]["hostPath"]["path"].startswith(OWN), found[1]) == (True, "/ckpt")


@pytest.mark.parametrize("mounted", ["/data", "/data/", "/data/ckpt", "/data/./ckpt"])
def test_a_path_on_a_volume_of_the_template_is_left_alone(mounted: str) -> None:
    made = body(a_job().gpus(1), volumeMounts=[{"name": "data", "mountPath": mounted}])
    assert checkpoint_mount(FORM.rewrite(made, Checkpoint(path="/data/ckpt"))) is None
    assert checkpoint_mount(FORM.rewrite(made, Checkpoint(path="/data-2"))) is not None


@pytest.mark.parametrize(("path", "expected"), [("/ckpt", "/ckpt"), ("", "/run/remuda/checkpoints")])
def test_the_job_s_volume_is_mounted_into_every_pod(path: str, expected: str) -> None:
    source = {"persistentVolumeClaim": {"claimName": "c"}}
    place = Checkpoint(path=path, volume=source)
    made = body(a_job().gpus(1).spec(checkpoint=place))
    assert checkpoint_mount({"spec": {"volumes": [], **made["spec"]}}) == (source, expected), "on embedded nodes, too"
    assert checkpoint_mount(FORM.rewrite(made, place)) == (source, expected)


def test_a_volume_of_ours_in_a_template_is_not_believed() -> None:
    made = body(a_job().gpus(1), volumeMounts=[{"name": "remuda-checkpoints", "mountPath": "/all"}])
    made["spec"]["volumes"] = [{"name": "remuda-checkpoints", "hostPath": {"path": "/"}}]
    found = checkpoint_mount(FORM.rewrite(made))
    assert found is not None
    assert found[0]["hostPath"]["path"].startswith(OWN)
    assert found[1].startswith(OWN)


def test_where_host_paths_are_refused_our_plugin_brings_the_launcher() -> None:
    form = KubeletGangPodForm(("python3", "/run/remuda/launch/remuda-launch.pyz", "--"))
    source = {"persistentVolumeClaim": {"claimName": "c"}}
    place = Checkpoint(volume=source)
    formed = form.rewrite(body(a_job().gpus(1).spec(checkpoint=place)), place, by_plugin=True)
    container = formed["spec"]["containers"][0]
    assert container["command"][:2] == ["python3", "/run/remuda/bin/remuda-launch.pyz"]
    assert checkpoint_mount(formed) == (source, "/run/remuda/checkpoints")
    assert {"name": "REMUDA_ALLOC_DIR", "value": "/run/remuda/alloc"} in container["env"], "where the plugin mounts it"
    assert not [v for v in formed["spec"]["volumes"] if "hostPath" in v]
    assert "volumes" not in form.rewrite(body(a_job().gpus(1)), by_plugin=True)["spec"]


def test_where_last_words_go_is_the_template_s_to_say() -> None:
    container = FORM.rewrite(body(a_job().gpus(1), terminationMessagePolicy="File"))["spec"]["containers"][0]
    assert container["terminationMessagePolicy"] == "File"


def test_what_the_template_says_stays() -> None:
    formed = FORM.rewrite(
        body(
            a_job().gpus(0),
            env=[{"name": "A", "value": "$(REMUDA_POD_NAME)"}],
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
        )
    )
    assert formed["spec"]["containers"][0]["env"][-1]["name"] == "A", "behind what it refers to"
    assert {m["mountPath"] for m in formed["spec"]["containers"][0]["volumeMounts"]} >= {"/data", "/run/remuda/pod"}


def read_by_the_launcher() -> set[str]:
    """Every variable of ours that is named in the code of the launcher or its helper."""
    found = set()
    for file in Path(launch.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            text = str(node.value) if isinstance(node, ast.Constant) else ""
            if re.fullmatch(r"REMUDA_[A-Z_]+", text):
                found.add(text)
    return found


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_config_map_cannot_bring_a_variable_that_the_launcher_believes(gpus: int) -> None:
    """A kubelet takes `envFrom` for what no `env` names, also before what a device plugin says."""
    source = [{"configMapRef": {"name": "theirs"}}, {"secretRef": {"name": "theirs"}, "prefix": "REMUDA_"}]
    container = FORM.rewrite(body(a_job().gpus(gpus), envFrom=source))["spec"]["containers"][0]
    names = read_by_the_launcher()
    assert {"REMUDA_ALLOC_DIR", "REMUDA_POD_UID", "REMUDA_LOG_FILE", "REMUDA_CHECKPOINT_RANKS"} <= names
    assert names - {entry["name"] for entry in container["env"]} == set()
    assert container["envFrom"] == source
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert values["REMUDA_ALLOC_DIR"] == kubelet_pods.DOOR_PATH


def test_the_plugin_mounts_where_the_pod_says() -> None:
    assert kubelet_pods.PLUGIN_DOOR_PATH == device_grants.ALLOC_PATH


HOSTILE = {
    "env": [
        {"name": "REMUDA_POD_UID", "value": "of-another-pod"},
        {"name": "REMUDA_NODE", "value": "mine"},
        {"name": "REMUDA_ALLOC_DIR", "value": "/data"},
        {"name": "A", "value": "1"},
    ],
    "volumeMounts": [
        {"name": "remuda-alloc", "mountPath": "/everybody"},
        {"name": "data", "mountPath": "/run/remuda/./alloc/"},
        {"name": "data", "mountPath": "/data"},
    ],
}


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_template_cannot_choose_which_pod_it_is_or_what_is_mounted_for_it(gpus: int) -> None:
    """Its uid names the directory that is mounted; the volume of all directories is for that mount alone."""
    made = body(a_job().gpus(gpus), **HOSTILE)
    made["spec"]["volumes"] = [{"name": "remuda-alloc", "hostPath": {"path": "/"}}, {"name": "data", "emptyDir": {}}]
    spec = FORM.rewrite(made)["spec"]
    container = spec["containers"][0]
    assert [e for e in container["env"] if e["name"] == "REMUDA_POD_UID"] == [
        {"name": "REMUDA_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    ]
    names = [e["name"] for e in container["env"]]
    assert len(names) == len(set(names))
    assert not [e for e in container["env"] if e.get("value") in ("mine", "/data")]
    assert [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "remuda-alloc"] == ["/run/remuda/pod"]
    assert [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "data"] == ["/data"]
    hosts = {v["name"]: (v.get("hostPath") or {}).get("path") for v in spec["volumes"]}
    assert str(hosts.pop("remuda-checkpoints")).startswith(OWN)
    assert hosts == {"remuda-alloc": "/host/alloc", "remuda-bin": "/host/bin", "data": None}


def test_no_container_beside_the_first_gets_what_is_mounted_for_it() -> None:
    made = body(a_job().gpus(1))
    made["spec"]["initContainers"] = [{"name": "i", "command": ["i"], **HOSTILE}]
    made["spec"]["containers"].append({"name": "second", "command": ["s"], **HOSTILE})
    spec = FORM.rewrite(made)["spec"]
    for container in (spec["initContainers"][0], spec["containers"][1]):
        assert [m["name"] for m in container["volumeMounts"]] == ["data"]
        assert not [e for e in container["env"] if e["name"].startswith("REMUDA_")]


def test_marks_of_ours_in_a_template_are_not_believed() -> None:
    made = a_job().gpus(1).build()
    role = made.spec.roles[0]
    meta = ObjectMeta(
        labels={"remuda.dev/gang": "another", "remuda.dev/reservation": "x", "team": "a"},
        annotations={"remuda.dev/devices": "gpu-7", "remuda.dev/has-run": "true", "note": "b"},
    )
    role = replace(role, template=replace(role.template, metadata=meta))
    found = build_job_pod(made, role, 0, spare=False, domain="")["metadata"]
    assert found["labels"] == {
        "team": "a",
        "remuda.dev/gang": made.name,
        "remuda.dev/role": role.name,
        "remuda.dev/pod-index": "0",
    }
    assert set(found["annotations"]) == {"note", "remuda.dev/launch", "remuda.dev/gang-size", "remuda.dev/template"}


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
