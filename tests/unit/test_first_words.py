"""A newcomer meets a first job before our own vocabulary: README, and a page per reader that fits one sitting."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("barrier", "ladder", "rung", "soak", "breaker", "price", "ETTR", "segment")


def test_the_readme_shows_a_first_job_before_it_uses_our_own_words() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    head, title, rest = text.partition("## Your first job\n")
    assert title, "README.md has a section `Your first job`"
    first = head + rest[: rest.index("\n## ")]
    assert "remuda train" in first
    early = [word for word in OURS if re.search(rf"\b{word}s?\b", first, re.IGNORECASE)]
    assert not early, f"said before the reader has a job: {early}"


@pytest.mark.parametrize("page", ["quickstart-ml-engineer.md", "quickstart-platform-engineer.md"])
def test_a_quickstart_is_one_page_and_the_index_begins_with_it(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 110
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert page in index.partition("\n3. ")[0]


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "README.md" and f"]({p.name})" not in index]
    assert not missing
