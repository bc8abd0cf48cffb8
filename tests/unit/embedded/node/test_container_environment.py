"""What a container's process is given."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest

from remuda.embedded.node.container_environment import (
    MAX_STRING,
    MAX_STRINGS,
    EnvironmentTooLarge,
    base_process_environment,
    container_command_line,
    container_environment,
    container_environment_from_plugin,
    expand_env_references,
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
    assert container_environment_from_plugin({"V": value}, mounts) == {"V": told}


# --- how much there may be of it --------------------------------------------------------------------------------------


def doubling(times: int, start: str = "x" * 64) -> dict[str, str]:
    """Each variable is the one before it, twice."""
    return {"V0": start, **{f"V{n}": f"$(V{n - 1})$(V{n - 1})" for n in range(1, times + 1)}}


def test_references_that_double_are_refused_before_they_are_put_together() -> None:
    pod = a_pod(env=doubling(40))
    tracemalloc.start()
    try:
        with pytest.raises(EnvironmentTooLarge, match=r"EnvironmentTooLarge: Variable V11 takes more than 128 KiB"):
            container_environment(pod, pod.spec.containers[0], ALLOCATION, node="n", address="a", base={})
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_STRINGS
    finally:
        tracemalloc.stop()


def test_many_long_variables_are_refused_together() -> None:
    pod = a_pod(env={"A": "x" * 100_000, **{f"V{n}": "$(A)" for n in range(1000)}})
    with pytest.raises(EnvironmentTooLarge, match="The environment takes more than 2048 KiB"):
        container_environment(pod, pod.spec.containers[0], ALLOCATION, node="n", address="a", base={})


@pytest.mark.parametrize(
    ("words", "said"),
    [(["$(A)$(A)"], "A word of the command line"), (["$(A)"] * 1000, "The command line"), (["y" * 200_000], "A word")],
)
def test_a_command_line_is_refused_before_it_is_put_together(words: list[str], said: str) -> None:
    (container,) = a_pod(command=["python"], args=words).spec.containers
    with pytest.raises(EnvironmentTooLarge, match=said):
        container_command_line(container, {"A": "x" * 100_000})


def test_what_a_process_can_have_it_gets() -> None:
    pod = a_pod(env={**doubling(10), "LONG": "x" * (MAX_STRING - len("LONG="))})
    env = container_environment(pod, pod.spec.containers[0], ALLOCATION, node="n", address="a", base={})
    assert len(env["V10"]) == 64 * 1024
    said = subprocess.run(
        [sys.executable, "-c", "import os; print(len(os.environ['LONG']))"], env=env, capture_output=True, check=True
    )
    assert int(said.stdout) == MAX_STRING - len("LONG=")
