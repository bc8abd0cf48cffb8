"""The body of a pod: what the template says stays, what Remuda needs is added."""

from __future__ import annotations

import msgspec

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import ObjectMeta
from remuda.core.training.job_pods import build_job_pod, template_digest
from tests.builders.gangs import RACK, JobBuilder, a_job


def built(job: JobBuilder, index: int = 0, *, spare: bool = False, domain: str = "") -> Pod:
    made = job.build()
    return from_wire(Pod, build_job_pod(made, made.spec.roles[0], index, spare=spare, domain=domain))


def test_a_member_of_a_gang() -> None:
    pod = built(a_job("train").replicas(8).gpus(4).in_one_rack(), 5)
    assert (pod.name, pod.namespace) == ("train-worker-5", "default")
    assert pod.labels == {
        "remuda.dev/gang": "train",
        "remuda.dev/role": "worker",
        "remuda.dev/pod-index": "5",
    }
    assert pod.annotations == {
        "remuda.dev/launch": "true",
        "remuda.dev/gang-size": "8",
        "remuda.dev/topology-required": RACK,
        "remuda.dev/template": template_digest(a_job("train").gpus(4).build().spec.roles[0]),
    }
    owner = pod.owner("TrainingJob")
    assert owner is not None
    assert (owner.name, owner.uid, owner.block_owner_deletion) == ("train", "uid-train", True)
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": 4}
    assert (pod.spec.restart_policy, pod.spec.scheduler_name) == ("OnFailure", "remuda")


def test_a_spare_and_a_replacement_say_so() -> None:
    assert built(a_job(), spare=True).annotations["remuda.dev/spare"] == "true"
    assert built(a_job(), domain="rack-2").annotations["remuda.dev/domain"] == "rack-2"


def test_the_gang_is_as_large_as_all_its_roles() -> None:
    assert built(a_job().replicas(2).spares(3).role("ps", replicas=4)).annotations["remuda.dev/gang-size"] == "6"


def test_the_template_has_the_last_word_where_it_says_something() -> None:
    job = a_job().template(
        restartPolicy="Never", schedulerName="mine", terminationGracePeriodSeconds=77, dnsPolicy="None"
    )
    made = job.build()
    body = build_job_pod(made, made.spec.roles[0], 0, spare=False, domain="")
    spec = body["spec"]
    assert (spec["restartPolicy"], spec["schedulerName"], spec["terminationGracePeriodSeconds"]) == (
        "Never",
        "mine",
        77,
    )
    assert spec["dnsPolicy"] == "None"


def test_there_is_time_to_stop_in_peace() -> None:
    assert built(a_job().failure(stop_grace_seconds=4.2)).spec.termination_grace_period_seconds == 8


def test_the_template_is_not_changed() -> None:
    job = a_job().gpus(2).build()
    before = msgspec.to_builtins(job.spec)
    role = job.spec.roles[0]
    meta = ObjectMeta(labels={"team": "a"}, annotations={"note": "b"})
    role = msgspec.structs.replace(role, template=msgspec.structs.replace(role.template, metadata=meta))
    body = build_job_pod(job, role, 0, spare=False, domain="")
    assert body["metadata"]["labels"]["team"] == "a"
    assert body["metadata"]["annotations"]["note"] == "b"
    assert msgspec.to_builtins(job.spec) == before
