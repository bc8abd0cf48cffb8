"""Manifests that people copy are taken as they stand: those of our own kinds in the README, in docs/ and in examples/."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from remuda.api.codec import decode_strict
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import GROUP
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout
from remuda.api.training import TrainingJob
from remuda.api.validation.validate import validate
from remuda.core.devices.machine_models import known_machine_models, load_built_in_machine_model
from remuda.core.remedies.policies import policy_selects

ROOT = Path(__file__).parents[2]
KINDS: dict[str, type[KObject]] = {k.resource.kind: k for k in (RemedyPolicy, NodeRollout, TrainingJob)}
YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def documents() -> Iterator[tuple[str, JsonObject]]:
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    texts = [(page, block) for page in pages for block in YAML.findall(page.read_text())]
    texts += [(path, path.read_text()) for path in sorted((ROOT / "examples").glob("*/*.yaml"))]
    for path, text in texts:
        if f"apiVersion: {GROUP}/" in text:
            for number, body in enumerate(yaml.safe_load_all(text)):
                yield f"{path.relative_to(ROOT)}-{number}", body


FOUND = dict(documents())


@pytest.mark.parametrize("name", FOUND)
def test_a_manifest_is_taken(name: str) -> None:
    validate(decode_strict(KINDS[FOUND[name]["kind"]], FOUND[name]))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.yaml")), ids=lambda path: path.parent.name)
def test_an_example_names_images(path: Path) -> None:
    """Else a real API server refuses its pods."""
    for body in yaml.safe_load_all(path.read_text()):
        pods = [role["template"]["spec"] for role in body["spec"].get("roles", ())] or [body["spec"]]
        assert all(container["image"] for pod in pods for container in pod["containers"])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/job.yaml")), ids=lambda path: path.parent.name)
def test_an_example_has_its_program_in_it(path: Path) -> None:
    text = path.read_text()
    assert runpy.run_path(str(ROOT / "tools" / "render-examples"))["rendered"](text, path.parent) == text, (
        "run tools/render-examples"
    )
    for role in yaml.safe_load(text)["spec"]["roles"]:
        (program,) = role["template"]["spec"]["containers"][0]["args"]
        assert program in {file.read_text() for file in path.parent.glob("*.py")}
        assert not re.search(r"\$[($]", program), "Kubernetes would replace it"


def test_all_kinds_are_shown() -> None:
    assert {body["kind"] for body in FOUND.values()} == set(KINDS)


def test_policies_select_devices_that_there_are() -> None:
    """Types have dashes where the driver has spaces, so a pattern as the maker writes the name selects nothing."""
    known = {device.type for name in known_machine_models() for device in load_built_in_machine_model(name).devices}
    for name, body in FOUND.items():
        if body["kind"] == "RemedyPolicy":
            selector = decode_strict(RemedyPolicy, body).spec.selector
            assert any(policy_selects(selector, kind, selector.nodes) for kind in known), name
