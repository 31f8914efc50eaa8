"""Jobs for one GPU of 16 GB, one of 80 GB and eight: by line against what is counted, and refused on smaller GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from estimate_parts.recipes import EXAMPLES, RECIPES, both, estimated, page_table
from pages import REPOSITORY
from typer.testing import CliRunner

from rapo_rllib.cli.main import app
from rapo_rllib.cli.train.estimating import DOES_NOT_FIT
from rapo_rllib.estimate.layout import ADVICE

RESULTS = json.loads((REPOSITORY / "benchmarks" / "results" / "recipes.json").read_text(encoding="utf-8"))
LAYERS = 4  # of the models that are counted here, of 28 and 30: layers are alike. The file has all of them
GIB_TOO_SMALL = {"rapo_math_gpu": 4, "rapo_gsm8k": 24, "rapo_math_7b": 24}


def counted_of(job: str, line: str) -> int:
    size: int = RESULTS[job]["counted"][line]
    return size


@pytest.mark.parametrize("job", RECIPES)
def test_every_line_is_within_10_percent_of_what_is_counted(job: str) -> None:
    few = both(RECIPES[job], LAYERS)
    for sizes, counted in ((estimated(RECIPES[job]), RESULTS[job]["counted"]), (few["estimated"], few["counted"])):
        assert {line: counted[line] for line in sizes} == pytest.approx(sizes, rel=0.1)
    passing = counted_of(job, "activations") + counted_of(job, "logits, gradients on their way")
    assert passing > counted_of(job, "the optimiser's own")  # else a step would be the peak, which no line has


def test_the_page_has_what_the_formulas_say() -> None:
    assert page_table(RESULTS) in (REPOSITORY / "docs" / "resources.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("job", RECIPES)
def test_a_size_too_small_is_refused_with_what_to_change(job: str, tmp_path: Path) -> None:
    recipe, runner = RECIPES[job], CliRunner()
    recipe.config(recipe.shape.layers).save_pretrained(tmp_path)
    command = ["train", "file", str(EXAMPLES / f"{job}.yaml"), "--estimate", "--set", f"model.name_or_path={tmp_path}"]
    large = runner.invoke(app, [*command, "--gpu-gib", str(recipe.gib)])
    assert large.exit_code == 0, large.output
    small = runner.invoke(app, [*command, "--gpu-gib", str(GIB_TOO_SMALL[job])])
    assert small.exit_code == DOES_NOT_FIT, small.output
    assert any("does not fit: memory of a GPU of: " in line and ADVICE in line for line in small.stdout.splitlines())
