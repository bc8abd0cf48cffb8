"""What is installed is what was tested: every package by version and hash, from wherever, and none that nobody uses."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["agent"]]
BUILD = PROJECT["build-system"]["requires"]
NEEDED = {"run": RUN, "build": BUILD, "dev": [*RUN, *BUILD, *PROJECT["project"]["optional-dependencies"]["dev"]]}
# Of an import of ours that brings another package's module with it.
THROUGH = {"uvicorn.protocols.http.httptools_impl": "httptools"}

_PIN = re.compile(r"([a-z0-9][a-z0-9.-]*)==([0-9][0-9a-zA-Z.+!]*)((?: --hash=sha256:[0-9a-f]{64})+)")


def pins(name: str) -> dict[str, tuple[str, str]]:
    """Package -> version and hashes. Every line must be a pin with a hash: nothing else, so no address either."""
    text = (ROOT / "pins" / f"{name}.txt").read_text()
    lines = [line for line in re.sub(r" \\\n +", " ", text).splitlines() if not line.startswith("#")]
    found: dict[str, tuple[str, str]] = {}
    for line in lines:
        match = _PIN.fullmatch(line)
        assert match is not None, f"pins/{name}.txt: {line:.80} is not name==version with hashes"
        assert match[1] not in found, f"pins/{name}.txt names {match[1]} twice"
        found[match[1]] = (match[2], match[3])
    return found


@pytest.mark.parametrize("name", NEEDED)
def test_every_package_is_pinned_by_version_and_hash(name: str) -> None:
    found = pins(name)
    for text in NEEDED[name]:
        needed = Requirement(text)
        version, _ = found[canonicalize_name(needed.name)]
        assert needed.specifier.contains(version, prereleases=True), text


@pytest.mark.parametrize("name", NEEDED)
def test_no_address_is_recorded(name: str) -> None:
    text = (ROOT / "pins" / f"{name}.txt").read_text()
    assert not re.search(r"://|@|index|find-links|trusted", text)


@pytest.mark.parametrize("name", ["run", "build"])
def test_images_and_wheels_are_made_of_what_is_tested(name: str) -> None:
    tested = pins("dev")
    assert pins(name).items() <= tested.items()


def test_what_packages_of_ours_need_is_pinned_too() -> None:
    """Whatever is installed here at the pinned version names only what is pinned."""
    found = pins("dev")
    for name, (version, _) in found.items():
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of the build, or of another platform
        if installed.version != version:
            continue
        for text in installed.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in found, f"{name} needs {needed}"


def test_nothing_is_installed_that_nobody_imports() -> None:
    imported: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
    modules = {name.split(".")[0] for name in imported} | {THROUGH[name] for name in imported & THROUGH.keys()}
    owners = importlib.metadata.packages_distributions()
    used = {canonicalize_name(owner) for module in modules for owner in owners.get(module, ())}
    declared = {canonicalize_name(Requirement(text).name) for text in RUN}
    assert declared <= used, declared - used
    assert not [text for text in NEEDED["dev"] if Requirement(text).extras], "an extra brings what nobody asked for"
    assert not {"uvloop", "watchfiles", "websockets", "python-dotenv"} & pins("dev").keys()


@pytest.mark.parametrize("path", ["tools/bootstrap", "deploy/README.md"])
def test_what_installs_remuda_takes_nothing_unpinned(path: str) -> None:
    text = (ROOT / path).read_text()
    commands = re.findall(r"^.*pip (?:install|wheel) .*$", text, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        assert ("--require-hashes" in command) != ("--no-deps" in command), command
    assert all("--no-build-isolation" in command or ".whl" in command for command in commands if "--no-deps" in command)


@pytest.mark.parametrize("path", ["deploy/agent.yaml", "deploy/manager.yaml"])
def test_what_runs_in_a_cluster_has_a_bound_for_its_memory(path: str) -> None:
    containers = 0
    for body in yaml.safe_load_all((ROOT / path).read_text()):
        spec = body.get("spec", {}).get("template", {}).get("spec", {}) if body["kind"] != "Namespace" else {}
        for container in spec.get("containers", ()):
            containers += 1
            resources = container["resources"]
            assert resources["requests"]["memory"]
            assert resources["limits"]["memory"]
        for volume in spec.get("volumes", ()):
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                assert volume["emptyDir"]["sizeLimit"]
    assert containers == 1
