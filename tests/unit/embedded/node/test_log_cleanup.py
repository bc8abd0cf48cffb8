"""Which logs are kept: of pods and jobs that are there, and for a while of jobs that are gone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from remuda.embedded.node.log_cleanup import (
    KEPT_JOBS,
    KEPT_PODS,
    KEPT_S,
    YOUNG_S,
    OwnerLogs,
    PodLogs,
    clean_logs_once,
    plan_log_cleanup,
)

NOW = 1_000_000.0
ROOT = Path("/logs/default")


def job(name: str, uid: str, pods: dict[str, float], age: float = 100.0) -> OwnerLogs:
    path = ROOT / f"{name}_{uid}"
    found = [PodLogs(path / f"w-{uid}_{uid}", NOW - old) for uid, old in pods.items()]
    return OwnerLogs(path, found, NOW - age)


def pod(name: str, uid: str, age: float = 100.0) -> OwnerLogs:
    path = ROOT / f"{name}_{uid}"
    return OwnerLogs(path, [PodLogs(path / f"{name}_{uid}", NOW - age)], NOW - age)


def removed(*found: OwnerLogs, pods: str = "", owners: str = "") -> list[str]:
    paths = plan_log_cleanup(found, pods=frozenset(pods.split()), owners=frozenset(owners.split()), now=NOW)
    return [str(path.relative_to(ROOT)) for path in paths]


def test_a_pod_takes_its_logs_with_it() -> None:
    assert removed(pod("solo", "a"), pod("other", "b"), pods="b") == ["solo_a"]


def test_a_pod_of_the_same_name_keeps_its_own() -> None:
    assert removed(pod("solo", "old"), pod("solo", "new"), pods="new") == ["solo_old"]


def test_what_is_young_is_left_alone() -> None:
    assert removed(pod("solo", "a", age=YOUNG_S - 1)) == []
    assert removed(pod("solo", "a", age=YOUNG_S + 1)) == ["solo_a"]


def test_a_job_keeps_the_logs_of_its_pods_that_are_gone_up_to_a_number() -> None:
    pods = {f"p{n}": 100.0 + n for n in range(KEPT_PODS + 3)}
    found = removed(job("train", "j", pods), owners="j")
    assert found == [f"train_j/w-p{n}_p{n}" for n in range(KEPT_PODS, KEPT_PODS + 3)], "the oldest go"
    assert removed(job("train", "j", pods), owners="j", pods=" ".join(pods)) == []


def test_a_pod_that_is_there_keeps_a_gang_whose_job_nobody_knows() -> None:
    assert removed(job("gang", "", {"a": 100, "b": 100}), pods="a") == []


def test_a_job_that_is_gone_is_kept_for_a_while() -> None:
    assert removed(job("train", "j", {"a": 100})) == []
    assert removed(job("train", "j", {"a": KEPT_S + 5}, age=KEPT_S + 1)) == ["train_j"]


def test_a_successor_ends_that() -> None:
    old, new = job("train", "old", {"a": 100}), job("train", "new", {})
    assert removed(old, new, owners="new") == ["train_old"]
    older = job("train", "older", {"b": 100}, age=500)
    assert removed(old, older) == ["train_older"], "of two that are gone the last is kept"


def test_of_jobs_that_are_gone_only_so_many_are_kept() -> None:
    found = [job(f"train-{n}", f"j{n}", {f"p{n}": 100 + n}, age=100.0 + n) for n in range(KEPT_JOBS + 2)]
    assert removed(*found) == [f"train-{n}_j{n}" for n in range(KEPT_JOBS, KEPT_JOBS + 2)]


def test_directories_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    (elsewhere / "team" / "x_1" / "x_1").mkdir(parents=True)
    (elsewhere / "team" / "x_1" / "x_1" / "main.log").write_text("mine")
    for uid in ("dead", "live"):
        place = root / "team" / f"p_{uid}" / f"p_{uid}"
        place.mkdir(parents=True)
        (place / "main.log").write_text("words")
    (root / "linked").symlink_to(elsewhere / "team")
    (root / "team" / "p_dead" / "out").symlink_to(elsewhere)
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1, 1), follow_symlinks=False)
    asyncio.run(clean_logs_once(root, lambda: None, lambda: NOW))
    assert (root / "team" / "p_dead").exists(), "nothing is removed while nobody knows the pods"
    asyncio.run(clean_logs_once(root, lambda: (["live"], []), lambda: NOW))
    assert [path.name for path in (root / "team").iterdir()] == ["p_live"]
    assert (elsewhere / "team" / "x_1" / "x_1" / "main.log").read_text() == "mine"
