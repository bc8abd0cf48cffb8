"""What a container's process is given."""

from __future__ import annotations

import pytest

from remuda.embedded.node.container_environment import (
    base_process_environment,
    container_command_line,
    container_environment,
    expand_env_references,
    plugin_host_environment,
)
from remuda.link.allocation_port import Allocation
from remuda.link.device_plugin_port import Mount
from tests.builders.pods import a_pod

ALLOCATION = Allocation(("gpu-1",), "/alloc", {"REMUDA_VISIBLE_DEVICES": "gpu-1", "REMUDA_ALLOC_DIR": "/alloc"})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("50$$", "50$"),
    ],
)
def test_references_expand_as_in_kubernetes(text: str, result: str) -> None:
    assert expand_env_references(text, {"A": "1", "B": "2"}) == result


def test_the_allocation_has_the_last_word_and_the_container_the_one_before() -> None:
    pod = a_pod(
        env={
            "PATH": "/mine",
            "REMUDA_POD_UID": "another",
            "REMUDA_VISIBLE_DEVICES": "gpu-7",
            "WHERE": "$(NODE_NAME)/$(POD_IP)",
        }
    )
    base = {"PATH": "/bin", "HOME": "/root"}
    env = container_environment(pod, pod.spec.containers[0], ALLOCATION, node="node-03", address="127.1.0.9", base=base)
    assert env["PATH"] == "/mine"
    assert env["REMUDA_VISIBLE_DEVICES"] == "gpu-1"
    assert env["REMUDA_POD_UID"] == pod.uid
    assert env["WHERE"] == "node-03/127.1.0.9"
    assert (env["POD_NAME"], env["POD_NAMESPACE"], env["POD_UID"]) == ("worker-0", "default", "uid-1")
    assert env["HOME"] == "/root"
    assert base == {"PATH": "/bin", "HOME": "/root"}


@pytest.mark.parametrize(("grace", "launcher"), [(30, "5"), (5, "4"), (1, "0.8"), (0, "0")])
def test_the_launchers_grace_fits_into_the_pods(grace: int, launcher: str) -> None:
    pod = a_pod(grace=grace)
    env = container_environment(pod, pod.spec.containers[0], ALLOCATION, node="n", address="a", base={})
    assert env["REMUDA_STOP_GRACE"] == launcher


def test_command_and_args_make_the_command_line() -> None:
    (container,) = a_pod(command=["python", "$(SCRIPT)"], args=["--rank", "$$(RANK)"]).spec.containers
    assert container_command_line(container, {"SCRIPT": "train.py"}) == ["python", "train.py", "--rank", "$(RANK)"]


def test_the_machine_lends_little_and_our_python_comes_first() -> None:
    env = base_process_environment({"PATH": "/usr/bin", "HOME": "/h", "SECRET_TOKEN": "x"}, "/venv/bin")
    assert env == {"PATH": "/venv/bin:/usr/bin", "HOME": "/h"}
    assert base_process_environment({}, "/venv/bin")["PATH"].startswith("/venv/bin:/")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("/run/a", "/state/a"),
        ("/run/a/sock", "/state/a/sock"),
        ("/run/abc", "/run/abc"),
        ("/run/a/deep/x", "/other/x"),
        ("plain", "plain"),
        ("x/run/a", "x/run/a"),
    ],
)
def test_paths_in_mounts_are_told_as_the_machine_has_them(value: str, told: str) -> None:
    mounts = (Mount("/run/a/", "/state/a"), Mount("/run/a/deep", "/other/"))
    assert plugin_host_environment({"V": value}, mounts) == {"V": told}
