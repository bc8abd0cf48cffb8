"""Pods that their nodes refuse, on a whole embedded cluster in virtual time. Rows 7 to 11 are in tests/drills."""

from __future__ import annotations

import pytest

from remuda.api.names import ANNOTATION_RETRY_ADMISSION
from remuda.core.failure.rejections import ADMISSION_REJECTED
from tests.builders.foreign import (
    bare,
    break_plugin,
    condition,
    deploy,
    one_running,
    only,
    pods_of,
    refused,
    submit_job,
    tell,
)
from tests.builders.world import World


def test_a_refused_pod_says_so() -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01")
        await only(world, "node-01")
        await bare(world)
        await world.until(lambda: condition(world.pod("solo"), ADMISSION_REJECTED) is not None)
        await world.sleep(60.0)
        assert [p.name for p in pods_of(world, "solo")] == ["solo"]

    tell(story)


@pytest.mark.parametrize("kind", ["bare", "job", "deployment"])
def test_pods_refused_before_the_plugin_is_back_run_in_the_end(kind: str) -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01", seconds=8.0)
        await only(world, "node-01")
        match kind:
            case "bare":
                await bare(world, "work", annotations={ANNOTATION_RETRY_ADMISSION: "true", "note": "kept"})
            case "job":
                await submit_job(world, "work", backoffLimit=0)
            case _:
                await deploy(world, "work")
        await world.until(lambda: refused(world), what="a refused pod")
        pod = await one_running(world, "work", 120.0)
        if kind == "bare":
            assert pod.annotations["note"] == "kept"
            assert len(pods_of(world, "work")) == 1
        assert not world.devices("node-01").withheld

    tell(story)
