"""Rows 64, 66, 67 and 72 of the checklist: what Jobs and gangs of others rely on, on a whole embedded cluster in virtual time."""

from __future__ import annotations

from typing import Any

from remuda.api.batch_v1 import COMPLETION_INDEX, Job
from remuda.api.conditions import find_condition, is_true
from remuda.api.core_v1 import Pod
from remuda.api.names import ANNOTATION_GANG_SIZE, LABEL_GANG
from remuda.core.builtin.pod_state import is_active
from remuda.node.runtime import ContainerKey
from remuda.node.training import Behaviour
from tests.builders.foreign import FOREVER, pods_of, read, running, submit_job, tell, template
from tests.builders.world import NAMESPACE, World


class ByPart(dict[str, Behaviour]):
    """The behaviour of pods whose name has that part."""

    def get(self, name: str, default: Any = None) -> Any:
        return next((found for part, found in self.items() if part in name), default)


def of_index(world: World, index: int) -> list[Pod]:
    return [p for p in pods_of(world, "batch") if p.annotations.get(COMPLETION_INDEX) == str(index)]


def kill(world: World, pod: Pod) -> None:
    for node in world.cluster.machines.nodes.values():
        if node.name == pod.spec.node_name:
            node.runtime.kill(ContainerKey(pod.uid, "main"))


async def indexed(world: World, count: int = 3, **spec: Any) -> None:
    await submit_job(world, completions=count, parallelism=count, completionMode="Indexed", **spec)
    await world.until(lambda: len(running(world, "batch")) == count)


def test_a_bad_index_is_given_up_and_the_others_go_on() -> None:
    """Row 64."""

    async def story(world: World) -> None:
        await indexed(world, backoffLimitPerIndex=1, maxFailedIndexes=1)
        others = {p.uid for p in running(world, "batch") if p.annotations[COMPLETION_INDEX] != "1"}
        for _ in range(2):
            await world.until(lambda: any(p.status.phase == "Running" for p in of_index(world, 1)), 90.0)
            kill(world, next(p for p in of_index(world, 1) if p.status.phase == "Running"))
            await world.until(lambda: not any(p.status.phase == "Running" for p in of_index(world, 1)))
        await world.until(lambda: read(world, Job, "batch").status.failed_indexes == "1", 30.0)
        assert {p.uid for p in running(world, "batch")} == others
        assert not is_true(read(world, Job, "batch").status.conditions, "Failed")

    tell(story)


def test_the_leaders_success_completes_the_job_and_removes_the_rest() -> None:
    """Row 66."""

    async def story(world: World) -> None:
        world.behaviours = ByPart({"batch-0-": Behaviour(run_s=5.0)})
        await indexed(world, successPolicy={"rules": [{"succeededIndexes": "0"}]})
        await world.until(lambda: is_true(read(world, Job, "batch").status.conditions, "Complete"), 60.0)
        said = find_condition(read(world, Job, "batch").status.conditions, "SuccessCriteriaMet")
        assert said is not None
        assert said.reason == "SuccessPolicy"
        await world.until(lambda: not running(world, "batch"))

    tell(story)


def test_no_two_pods_ever_live_on_one_index() -> None:
    """Row 67, with a process that takes its time to go."""

    async def story(world: World) -> None:
        world.behaviours = ByPart({"batch-": Behaviour(stop_s=20.0)})
        await indexed(world, podReplacementPolicy="Failed")
        victim = of_index(world, 1)[0]
        await world.cluster.api.delete(Pod, victim.name, NAMESPACE)
        most = 0

        def look() -> bool:
            nonlocal most
            most = max(most, len([p for p in of_index(world, 1) if p.is_live]))
            return any(is_active(p) and p.uid != victim.uid for p in of_index(world, 1))

        await world.until(look, 60.0)
        assert most == 1

    tell(story)


def test_a_member_is_replaced_when_the_others_are_done() -> None:
    """Row 72."""

    async def story(world: World) -> None:
        async def make(name: str, run_s: float | None) -> None:
            world.behaviours[name] = Behaviour(run_s=run_s) if run_s else FOREVER
            body = template(restart="Never", annotations={ANNOTATION_GANG_SIZE: "3"}, app="ring")
            body["metadata"]["labels"][LABEL_GANG] = "ring"
            meta = {**body["metadata"], "name": name, "namespace": NAMESPACE}
            await world.cluster.api.create(Pod, {"metadata": meta, "spec": body["spec"]})

        for name, run_s in (("one", 5.0), ("two", 5.0), ("three", None)):
            await make(name, run_s)
        await world.until(lambda: sum(p.status.phase == "Succeeded" for p in pods_of(world, "ring")) == 2)
        await world.cluster.api.delete(Pod, "three", NAMESPACE)
        await world.until(lambda: world.pod("three") is None, 60.0)
        await make("four", None)
        await world.until(lambda: [p.name for p in running(world, "ring")] == ["four"], 30.0)

    tell(story)
