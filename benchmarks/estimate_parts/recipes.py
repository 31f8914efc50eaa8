"""Three jobs of ``tuned_examples/``, each for a size of machine: what a GPU of it holds by line, estimated and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from estimate_parts.counted import LINES, counted
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import only_config
from rapo_rllib.cli.train.experiments import read_experiments
from rapo_rllib.estimate.layout import GIB, Machine, at_peak, fits, processes
from rapo_rllib.estimate.memory import Shape
from rapo_rllib.settings import Settings

EXAMPLES = Path(__file__).resolve().parents[2] / "tuned_examples"


@dataclass(frozen=True)
class Recipe:
    """A job, the memory that programs have of one of its GPUs, and the model: kind and sizes as its id has them."""

    job: str
    machine: str
    gib: float
    kind: str
    shape: Shape

    def config(self, layers: int) -> PretrainedConfig:
        """The ``config.json`` of the model, with so many layers."""
        shape = self.shape
        return AutoConfig.for_model(
            self.kind,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            vocab_size=shape.vocabulary,
            tie_word_embeddings=shape.tied,
        )

    def settings(self) -> Settings:
        """The job's, as the command has them."""
        settings: Settings = only_config(read_experiments(EXAMPLES / f"{self.job}.yaml", RunOptions())).settings
        return settings


RECIPES = {
    recipe.job: recipe
    for recipe in (
        Recipe("rapo_math_gpu", "1 x 16 GB", 15, "llama", Shape(576, 1536, 30, 9, 3, 64, 49152, True)),
        Recipe("rapo_gsm8k", "1 x 80 GB", 79, "qwen2", Shape(1536, 8960, 28, 12, 2, 128, 151936, True)),
        Recipe("rapo_math_7b", "8 x 80 GB", 79, "qwen2", Shape(3584, 18944, 28, 28, 4, 128, 152064, False)),
    )
}


def estimated(recipe: Recipe, layers: int | None = None) -> dict[str, int]:
    """Bytes of a learner's lines, by the formulas, as ``--estimate`` has them."""
    shape = replace(recipe.shape, layers=layers or recipe.shape.layers)
    learner = next(one for one in processes(recipe.settings(), shape, None) if "learner" in one.name)
    return {part.name: part.num_bytes for part in learner.gpu if part.name in LINES and part.num_bytes}


def both(recipe: Recipe, layers: int | None = None) -> dict[str, dict[str, int]]:
    """Estimate and count the same lines, in bytes."""
    found = counted(recipe.config(layers or recipe.shape.layers), recipe.settings())
    return {"estimated": estimated(recipe, layers), "counted": found}


def lines(results: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """Estimated and counted GiB and their ratio, for each job and line, in Markdown."""
    written = ["| job | line | estimated, GiB | counted, GiB | ratio |", "| --- | --- | --- | --- | --- |"]
    for job, found in results.items():
        pairs = {line: (size, found["counted"][line]) for line, size in found["estimated"].items()}
        for line, (size, really) in {**pairs, "all": tuple(map(sum, zip(*pairs.values(), strict=True)))}.items():
            written.append(f"| `{job}` | {line} | {size / GIB:.2f} | {really / GIB:.2f} | {size / really:.2f} |")
    return "\n".join(written)


def page_table(results: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """Write the table of ``docs/resources.md``: GiB of a learner, estimated (counted, if another); of an engine; of a GPU."""
    rows = [["GiB of a GPU", *(f"{one.machine}: `{job}`" for job, one in RECIPES.items())], ["---"] * (1 + len(RECIPES))]
    sizes = {job: estimated(recipe) for job, recipe in RECIPES.items()}
    rows += [[line, *(_cell(sizes[job].get(line), results[job]["counted"].get(line)) for job in RECIPES)] for line in LINES]
    needs = [_needs(recipe) for recipe in RECIPES.values()]
    rows += [[line, *(need[line] for need in needs)] for line in needs[0]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(size: int | None, really: int | None) -> str:
    texts = [] if size is None or really is None else [f"{size / GIB:.2f}", f"({really / GIB:.2f})"]
    return " ".join(texts[:1] if f"({''.join(texts[:1])})" in texts else texts)


def _needs(recipe: Recipe) -> dict[str, str]:
    """Sum what the engine takes, and what a GPU holds at its peak: a learner's, an engine's, or one of both."""
    found = processes(recipe.settings(), recipe.shape, int(recipe.gib * GIB))
    (engine,) = (process for process in found if process.name == "engine")
    sizes = [part.num_bytes for part in at_peak(engine.gpu)]
    said = [fit for fit in fits(found, Machine(None, int(recipe.gib * GIB), None)) if "GPU of" in fit["where"]]
    needed = {
        fit["where"].rpartition(": ")[2].removeprefix("first "): fit["needed"] for fit in said if "other" not in fit["where"]
    }
    return {
        "an engine: weights, one step, keys and values": ", ".join(f"{size / GIB:.2f}" for size in sizes),
        "needed, with 0.5 of CUDA": ", ".join(f"{name} {size / GIB:.1f}" for name, size in needed.items()),
        "there": f"{recipe.gib:g}",
    }
