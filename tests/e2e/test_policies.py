"""The example of docs/training.md, as written: stages, rules by exit code and by log, suspend and resume, on real processes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from remuda.api.codec import to_wire
from remuda.api.training import TrainingJob
from tests.builders.waiting import PATIENCE_S, until
from tests.e2e.clusters import Up
from tests.e2e.rig import NAMESPACE

EXAMPLE = Path(__file__).parents[2] / "examples" / "05-policies"


class Guide:
    def __init__(self, cluster: Up) -> None:
        self._cluster = cluster

    async def run(self, *words: str) -> str:
        code, said = await self._cluster.run(*words)
        assert code == 0, said
        return said

    async def waits(self, name: str, what: str, holds: Callable[[Any], bool]) -> Any:
        """Watched through the API: on a busy machine a command takes longer than some phases do."""
        found: list[Any] = []
        async with self._cluster.rig() as rig:

            async def is_so() -> bool:
                found[:] = [to_wire(await rig.api.get(TrainingJob, name, NAMESPACE)).get("status", {})]
                return holds(found[0])

            await until(f"{name}: {what}", is_so, PATIENCE_S)
        return found[0]

    async def submit(self, name: str, **changes: Any) -> None:
        """The example under this name, with other fields in the containers of these roles."""
        body = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
        body["metadata"]["name"] = name
        for role in body["spec"]["roles"]:
            role["template"]["spec"]["containers"][0].update(changes.pop(role["name"], {}))
        assert not changes
        path = self._cluster.state / f"{name}.yaml"
        path.write_text(yaml.safe_dump(body))
        await self.run("train", "-f", str(path))

    async def submit_as_the_readme_says(self) -> None:
        """The job without data: one word of the file is another."""
        text = (EXAMPLE / "job.yaml").read_text().replace("name: policies", "name: doomed")
        assert "value: points.json" in text
        path = self._cluster.state / "doomed.yaml"
        path.write_text(text.replace("value: points.json", "value: nowhere.json"))
        await self.run("train", "-f", str(path))


@pytest.fixture
async def guide(state: Path) -> AsyncIterator[Guide]:
    cluster = Up(state)
    cluster.start()
    try:
        yield Guide(cluster)
    finally:
        cluster.kill()


async def test_the_example_goes_through_its_stages_and_survives_a_suspension(guide: Guide) -> None:
    # More steps than the example has: on a busy machine it would end between two commands.
    await guide.submit("policies", worker={"env": [{"name": "POLICIES_STEPS", "value": "20000"}]})
    trained = await guide.waits("policies", "trains", lambda s: s.get("progress", {}).get("step", 0) > 20)
    assert trained["doneRoles"] == ["prepare"]
    assert trained["progress"]["totalSteps"] in (3000, 20000), "as the spec says, or the program"
    assert trained["progress"]["eta"]
    assert [m["role"] for m in trained["members"]] == ["worker", "worker"]

    said = json.loads(await guide.run("job", "policies", "-o", "json"))["status"]
    assert said["doneRoles"] == ["prepare"]
    await guide.run("suspend", "policies")
    stopped = await guide.waits("policies", "stands still", lambda s: s.get("phase") == "Suspended")
    assert "members" not in stopped
    saved = stopped["progress"]["checkpointStep"]
    assert saved > 0
    assert "Suspended" in await guide.run("jobs")

    await guide.run("resume", "policies")
    again = await guide.waits("policies", "goes on", lambda s: s.get("phase") == "Running")
    assert again["resumeStep"] >= saved
    assert "used" not in again

    asked: list[str] = []

    async def says_what_to_touch() -> bool:
        log = await guide.run("logs", "policies", "--rank", "0")
        asked[:] = [line.split("touch ")[1] for line in log.splitlines() if "touch " in line]
        return bool(asked)

    await until("the program to say how to play a lost connection", says_what_to_touch)
    _touch(asked[-1])
    charged = await guide.waits("policies", "was restarted by rule", lambda s: s.get("used"))
    assert charged["used"] == {"infra": 1}
    assert (charged["recoveries"][-1]["rule"], charged["recoveries"][-1]["remedy"]) == (
        "lost-connection",
        "RestartInPlace",
    )
    assert "charged to infra" in await guide.run("job", "policies")


async def test_rules_end_a_job_by_exit_code_and_by_what_its_log_says(guide: Guide) -> None:
    await guide.submit_as_the_readme_says()
    words = "echo CUDA out of memory >&2; echo bye; exit 1"
    await guide.submit("no-memory", prepare={"command": ["sh", "-c"], "args": [words]})
    for name, rule in (("doomed", "no-data"), ("no-memory", "out-of-memory")):
        failed = await guide.waits(name, "fails", lambda s: s.get("phase") == "Failed")
        assert (failed["reason"], failed["recoveries"][-1]["rule"]) == ("RuleFail", rule)
        assert f"Rule `{rule}` ends the job" in failed["message"]


def _touch(path: str) -> None:
    Path(path).touch()
