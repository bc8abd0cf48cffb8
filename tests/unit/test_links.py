"""Links in the documentation lead somewhere: the file is there, and so is the heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for top in ("docs", "deploy", "examples") for page in sorted((ROOT / top).rglob("*.md"))),
]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(text: str) -> list[str]:
    return [link for link in LINK.findall(FENCED.sub("", text)) if not re.match(r"[a-z]+:", link)]


def anchors(text: str) -> set[str]:
    """As GitHub makes them: small letters, no punctuation, hyphens for spaces."""
    heads = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            lost.append(link)
    assert not lost, f"{page.relative_to(ROOT)} links to what is not there: {lost}"


def test_links_and_anchors_are_read_as_written() -> None:
    text = "# Roles, and `after`\n[a](b.md#c) [w](https://x.y)\n```\n[not](a-link.md)\n# no heading\n```\n"
    assert links(text) == ["b.md#c"]
    assert anchors(text) == {"roles-and-after"}
