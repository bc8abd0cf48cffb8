"""The straggler bench on a few held-out seeds: its bars hold, by seed alone, and it can fail."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from bench.bars import render
from bench.straggler import bars_of, load, measure, naive, ours

SMALL = 40


@pytest.mark.slow
def test_the_bars_hold_on_held_out_seeds() -> None:
    parameters = load()
    parameters = replace(parameters, world=replace(parameters.world, sizes=[8, 16, 32], healthy_share=0.1))
    seeds = parameters.seeds.held_out.all()[:SMALL]
    found, simple = (measure(parameters, seeds, rule(parameters)) for rule in (ours, naive))
    bars = parameters.bars
    assert sum(n for factor, n in found.was.items() if factor >= bars.recall_from) >= 30, (
        "too few stragglers to judge by"
    )
    assert found.precision >= bars.precision
    assert found.recall(bars.recall_from) >= bars.recall
    assert found.delay(bars.recall_from, 0.5) <= 20
    assert simple.wrong > 10 * max(1, found.wrong)
    assert [bar.verdict for bar in bars_of(parameters, found, simple, "") if bar.limit is not None] == ["PASS"] * 4
    again = measure(parameters, seeds, ours(parameters))
    assert (again.right, again.wrong, again.named) == (found.right, found.wrong, found.named)


def test_seeds_are_split() -> None:
    seeds = load().seeds
    assert not set(seeds.tuning.all()) & set(seeds.held_out.all())


def test_a_rule_that_names_nobody_misses_its_bar() -> None:
    parameters = load()
    parameters = replace(parameters, world=replace(parameters.world, sizes=[4, 8], steps=200))
    blind = measure(parameters, range(1, 9), lambda window, known: set())
    table = io.StringIO()
    Console(file=table, width=200).print(render(bars_of(parameters, blind, blind, "tuning")))
    assert "MISS" in table.getvalue()
