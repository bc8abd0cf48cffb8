"""`remuda uninstall`: says first what it would do, does it when told, and leaves jobs running unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import KObject, ObjectMeta, OwnerReference
from remuda.api.training import TrainingJob
from remuda.core.uninstall.installed_objects import SYSTEM, InstalledObject, installed_objects, workloads_to_uninstall
from remuda.runtime.uninstall import untyped_kind_for_uninstall_run
from tests.unit.cli.scenes import Cli, a_job, machines, pods

NODE = "node-01"
NAMES = (*workloads_to_uninstall(SYSTEM)[:2], *installed_objects(SYSTEM))


def installed(each: InstalledObject) -> KObject:
    return untyped_kind_for_uninstall_run(each.resource)(metadata=ObjectMeta(name=each.name, namespace=each.namespace))


def marked(obj: KObject) -> KObject:
    if not isinstance(obj, Node) or obj.name != NODE:
        return obj
    marks = {"remuda.dev/cordoned-by": "rollout-driver", "remuda.dev/remedy-by": "rollout-driver"}
    meta = replace(obj.metadata, annotations={**obj.annotations, **marks})
    return replace(obj, metadata=meta, spec=replace(obj.spec, unschedulable=True))


def owned(obj: KObject) -> KObject:
    owner = OwnerReference("remuda.dev/v1alpha1", "TrainingJob", "hello", "uid-hello", controller=True)
    return replace(obj, metadata=replace(obj.metadata, owner_references=[owner]))


@pytest.fixture(name="there")
def an_installed_cluster(tmp_path: Path) -> Cli:
    return Cli(tmp_path, [*map(marked, machines()), *map(owned, pods()), a_job(), *map(installed, NAMES)])


def names(there: Cli, kind: type[KObject]) -> list[str]:
    return [obj.name for obj in there.objects(kind) if not obj.is_deleting]


def one(there: Cli, kind: type[KObject], name: str) -> Any:
    return next(obj for obj in there.objects(kind) if obj.name == name)


def test_a_dry_run_says_what_and_does_nothing(there: Cli) -> None:
    said = there.run("uninstall", "--dry-run")
    assert said.code == 0
    for words in ("Deployment", "remuda-manager", "stop the managers", "uncordon, remove 2 annotations"):
        assert words in said.out
    assert "Nobody recovers them any more" in said.out
    assert one(there, Node, NODE).spec.unschedulable
    assert names(there, TrainingJob) == ["hello"]


def test_told_to_everything_goes_and_the_ranks_run_on(there: Cli) -> None:
    said = there.run("uninstall", "--yes", "--keep-node-files")
    assert said.code == 0, said.err
    node = one(there, Node, NODE)
    assert (node.spec.unschedulable, "remuda.dev/cordoned-by" in node.annotations) == (False, False)
    for each in NAMES:
        assert each.name not in names(there, untyped_kind_for_uninstall_run(each.resource)), each
    assert names(there, TrainingJob) == []
    ranks = there.objects(Pod)
    assert [(pod.is_deleting, pod.metadata.owner_references) for pod in ranks] == [(False, [])] * len(pods())


def test_jobs_go_when_that_is_asked_for(there: Cli) -> None:
    said = there.run("uninstall", "--yes", "--keep-node-files", "--delete-jobs")
    assert said.code == 0, said.err
    assert all(pod.is_deleting for pod in there.objects(Pod))


def test_a_second_time_there_is_nothing(there: Cli) -> None:
    there.run("uninstall", "--yes", "--keep-node-files")
    said = there.run("uninstall", "--yes")
    assert said.code == 2
    assert "NotInstalled" in said.err


def test_an_embedded_cluster_has_nothing_installed(busy: Cli) -> None:
    said = busy.run("uninstall", "--yes")
    assert said.code == 2
    assert "remuda down" in said.err


@pytest.mark.parametrize(
    "words",
    [("uninstall", "--yes", "--keep-node-files", "--image", "x"), ("agent", "--keep-launcher")],
    ids=lambda words: words[0],
)
def test_an_option_that_would_do_nothing_is_refused(there: Cli, words: tuple[str, ...]) -> None:
    said = there.run(*words)
    assert (said.code, said.err.split(":")[1]) == (2, " ContradictingOptions"), said.err
    assert names(there, TrainingJob) == ["hello"]
