"""Rows 64-67, 72: what Jobs and gangs rely on when one of their pods ends."""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.kubernetes.batch_v1 import COMPLETION_INDEX, Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_GANG_SIZE, LABEL_GANG
from remuda.api.training import FailureRule, Remedy, RuleAction, SuccessPolicy, TrainingJob
from remuda.embedded.builtin.planners.pod_state import is_active_pod
from remuda.embedded.node.runtime_port import ContainerKey
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.evidence import note
from tests.builders.foreign import FOREVER, pods_of, read, running, submit_job, tell, template
from tests.builders.world import NAMESPACE, World, in_world, training_job
from tests.component.world_rig import machine


class ByPart(dict[str, SimulatedBehaviour]):
    """The behaviour of pods whose name has that part."""

    def get(self, name: str, default: Any = None) -> Any:
        return next((found for part, found in self.items() if part in name), default)


def of_index(world: World, index: int) -> list[Pod]:
    return [p for p in pods_of(world, "batch") if p.annotations.get(COMPLETION_INDEX) == str(index)]


def kill(world: World, pod: Pod) -> None:
    """Its container ends with code 137."""
    machine(world, pod.spec.node_name).runtime.kill(ContainerKey(pod.uid, "main"))


async def fail_index(world: World, index: int) -> None:
    await world.until(lambda: any(p.status.phase == "Running" for p in of_index(world, index)), 90.0)
    kill(world, next(p for p in of_index(world, index) if p.status.phase == "Running"))
    await world.until(lambda: not any(p.status.phase == "Running" for p in of_index(world, index)))


async def indexed(world: World, count: int = 3, **spec: Any) -> None:
    await submit_job(world, completions=count, parallelism=count, completionMode="Indexed", **spec)
    await world.until(lambda: len(running(world, "batch")) == count)


def test_row_64_a_bad_index_is_given_up_and_the_others_go_on() -> None:
    async def story(world: World) -> None:
        await indexed(world, count=4, backoffLimitPerIndex=1, maxFailedIndexes=1)
        others = {p.uid for p in running(world, "batch") if p.annotations[COMPLETION_INDEX] != "1"}
        await fail_index(world, 1)
        await fail_index(world, 1)
        await world.until(lambda: read(world, Job, "batch").status.failed_indexes == "1", 30.0)
        assert {p.uid for p in running(world, "batch")} == others
        assert not is_condition_true(read(world, Job, "batch").status.conditions, "Failed")
        await fail_index(world, 2)
        await fail_index(world, 2)
        await world.until(lambda: is_condition_true(read(world, Job, "batch").status.conditions, "Failed"), 30.0)
        said = find_condition(read(world, Job, "batch").status.conditions, "Failed")
        assert said is not None
        assert said.reason == "MaxFailedIndexesExceeded"
        note(
            f"limit 1 per index: index 1 given up after 2 crashes, 3 others untouched; a second bad index: {said.reason}"
        )

    tell(story)


def test_row_65_a_jobs_declared_exit_code_ends_it_and_the_rule_is_named() -> None:
    async def story(world: World) -> None:
        rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}
        await indexed(world, podFailurePolicy={"rules": [rule]}, backoffLimit=6)
        begun = world.now
        kill(world, of_index(world, 0)[0])
        await world.until(lambda: is_condition_true(read(world, Job, "batch").status.conditions, "Failed"))
        took = world.now - begun
        failed = find_condition(read(world, Job, "batch").status.conditions, "Failed")
        assert failed is not None
        assert failed.reason == "PodFailurePolicy"
        assert "exit code 137 matching FailJob rule at index 0" in failed.message
        await world.until(lambda: not running(world, "batch"))
        assert len(of_index(world, 0)) == 1, "it was tried again"
        note(
            f"Job: Failed {took:.1f} s after the exit, PodFailurePolicy, 'exit code 137 matching FailJob rule at index 0'"
        )

    tell(story)


@in_world()
async def test_row_65_a_training_jobs_rule_ends_it_and_is_named(world: World) -> None:
    rule = FailureRule(RuleAction.FAIL, name="no-data", exit_codes=[42])
    await world.submit("job", replicas=4, spares=1, rules=[rule])
    await world.running()
    child = world.child("job", 2)
    assert child is not None
    child.fail(42, "exit code 42: the dataset is gone")
    await world.until(lambda: world.job().is_finished)
    status = world.job().status
    assert (status.phase, status.reason) == ("Failed", "RuleFail")
    assert [r.remedy for r in status.recoveries] == [Remedy.FAIL]
    assert "Rule `no-data`" in status.message
    assert "exit code 42" in status.message
    await world.until(lambda: all(pod.is_terminal for pod in world.pods()), 30.0, "its pods have ended")
    assert {pod.name for pod in world.pods()} >= {member.pod for member in status.members}, "their logs can be read"
    note(f"TrainingJob: {status.reason} at the first exit 42. {status.message}")


def test_row_66_the_leaders_success_completes_the_job_and_removes_the_rest() -> None:
    async def story(world: World) -> None:
        world.behaviours = ByPart({"batch-0-": SimulatedBehaviour(run_s=5.0)})
        await indexed(world, successPolicy={"rules": [{"succeededIndexes": "0"}]})
        await world.until(lambda: is_condition_true(read(world, Job, "batch").status.conditions, "Complete"), 60.0)
        said = find_condition(read(world, Job, "batch").status.conditions, "SuccessCriteriaMet")
        assert said is not None
        assert said.reason == "SuccessPolicy"
        await world.until(lambda: not running(world, "batch"))
        note(f"Job: index 0 succeeded, {said.reason}, Complete, the 2 others are gone")

    tell(story)


@in_world()
async def test_row_66_a_training_jobs_leader_ends_it(world: World) -> None:
    job = training_job("job")
    first = job.spec.roles[0]
    roles = [
        msgspec.structs.replace(first, name="lead", replicas=1),
        msgspec.structs.replace(first, name="crew", replicas=2),
    ]
    spec = msgspec.structs.replace(job.spec, roles=roles, success=SuccessPolicy(role="lead"))
    await world.cluster.api.create(TrainingJob, msgspec.structs.replace(job, spec=spec))
    await world.running()
    child = world.child("job", 0)
    assert child is not None
    child.fail(0, "")
    await world.until(lambda: world.job().status.phase == "Succeeded", 60.0)
    await world.until(lambda: not world.pods(), 30.0, "the crew is gone")
    note("TrainingJob: role lead succeeded, the job too, the 2 of the crew are gone")


def test_row_67_no_two_pods_ever_live_on_one_index() -> None:
    """With processes that take their time to go."""

    async def story(world: World) -> None:
        world.behaviours = ByPart({"batch-": SimulatedBehaviour(stop_s=20.0)})
        await indexed(world, podReplacementPolicy="Failed")
        most, replaced = 0, 0

        def look(gone: str) -> bool:
            nonlocal most
            for index in range(3):
                most = max(most, len([p for p in of_index(world, index) if p.is_live]))
            return any(is_active_pod(p) and p.uid != gone for p in of_index(world, 1))

        for _ in range(3):
            await world.until(lambda: len(running(world, "batch")) == 3, 120.0)
            victim = next(p for p in of_index(world, 1) if is_active_pod(p))
            begun = world.now
            await world.cluster.api.delete(Pod, victim.name, NAMESPACE)
            await world.until(lambda gone=victim.uid: look(gone), 60.0, "it is replaced")  # type: ignore[misc]
            assert world.now - begun >= 20.0, "before the old one was gone"
            replaced += 1
        assert most == 1
        note(f"{replaced} pods of index 1 deleted, each 20 s in stopping: never more than {most} live pod per index")

    tell(story)


def test_row_72_a_member_is_replaced_when_the_others_are_done() -> None:
    async def story(world: World) -> None:
        async def make(name: str, run_s: float | None) -> None:
            world.behaviours[name] = SimulatedBehaviour(run_s=run_s) if run_s else FOREVER
            body = template(restart="Never", annotations={ANNOTATION_GANG_SIZE: "3"}, app="ring")
            body["metadata"]["labels"][LABEL_GANG] = "ring"
            meta = {**body["metadata"], "name": name, "namespace": NAMESPACE}
            await world.cluster.api.create(Pod, {"metadata": meta, "spec": body["spec"]})

        for name, run_s in (("one", 5.0), ("two", 5.0), ("three", None)):
            await make(name, run_s)
        await world.until(lambda: sum(p.status.phase == "Succeeded" for p in pods_of(world, "ring")) == 2)
        await world.cluster.api.delete(Pod, "three", NAMESPACE)
        await world.until(lambda: world.pod("three") is None, 60.0)
        begun = world.now
        await make("four", None)
        await world.until(lambda: [p.name for p in running(world, "ring")] == ["four"], 30.0)
        note(f"gang of 3, two Succeeded: the third's replacement runs {world.now - begun:.1f} s after it was made")

    tell(story)
