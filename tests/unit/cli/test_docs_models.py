"""The page on machine models tells the truth: its example parses, and it names every model that ships."""

import re
from pathlib import Path

import yaml

from remuda.core.devices.links import PATH_SCORES, SAME_SOCKET_SCORE
from remuda.core.devices.machine_models import known_machine_models, parse_machine_model

PAGE = Path(__file__).parents[3] / "docs" / "machine-models.md"


def test_the_example_is_a_model_and_so_is_the_declared_profile() -> None:
    whole, profile = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert parse_machine_model(whole).name == "our-server"
    geometry = parse_machine_model({**whole, **profile}).geometry(0)
    assert geometry is not None
    assert geometry.profile("3g.30gb").memory == 3


def test_every_model_and_score_is_there() -> None:
    text = PAGE.read_text()
    assert all(f"`{name}`" in text for name in known_machine_models())
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\d+) \|$", text, re.MULTILINE)
    assert rows == [(name, str(score)) for name, score in PATH_SCORES.items() if name != "SYS"] + [
        ("SYS", str(SAME_SOCKET_SCORE)),
        ("SYS", str(PATH_SCORES["SYS"])),
    ]
