"""``rllib evaluate``: language models on named benchmarks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib.cli.options import Concurrency, Extra, KeyVariables, Overrides, Seed, Timeout, json_object, key_value
from rapo_rllib.cli.terminal import attempts_display, one_line_errors

if TYPE_CHECKING:
    from rapo_rllib.agents.journal import Journal
    from rapo_rllib.agents.setup import AgentChoice
    from rapo_rllib.evaluation.models import AskedBenchmark

RESULTS = "results.json"


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Checkpoints, Hugging Face ids or folders, packaged models, or http(s)://.../v1#MODEL.", show_default=False
        ),
    ],
    benchmarks: Annotated[
        str | None,
        typer.Option("--benchmarks", "-b", help="Names, NAME=PATH, or files, with commas between: gsm8k,eval.jsonl."),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            help="Where answers are read: tagged, boxed, or any: as the model gives them (default: the job's, tagged)."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Attempts at each question.")] = 1,
    max_questions: Annotated[int | None, typer.Option(min=1, help="Only the first so many of each benchmark.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Of the sampling (default: 0 with one sample, else the job's).")
    ] = None,
    seed: Seed = None,
    retrieval_prob: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Chance of a retrieval after a completed step, from the step_trace_buffer."),
    ] = 0.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of results and transcripts; an interrupted evaluation resumes there.")
    ] = Path("evaluation"),
    job: Annotated[
        Path | None,
        typer.Option(help="A job of RAPO whose protocol, budgets, engine are used (default: the first checkpoint's)."),
    ] = None,
    set_: Overrides = None,
    agent_key_env: KeyVariables = None,
    agent_concurrency: Concurrency = 16,
    agent_timeout_s: Timeout = 120.0,
    agent_extra: Extra = None,
) -> None:
    """Evaluate language models on benchmarks, without retrieval unless asked."""
    from rapo_rllib.cli.evaluate.choices import chosen_models

    overrides = [key_value(item) for item in set_ or ()]
    with one_line_errors(f"Stopped. The same command continues with what is left; {output} has the rest."):
        if (output / RESULTS).exists():
            raise ValueError(f"--output {output}: holds the results of another evaluation: name another folder")
        extra = json_object(agent_extra, "--agent-extra") or {}
        requests = {"concurrency": agent_concurrency, "timeout_s": agent_timeout_s, "extra": extra}
        temperature = 0.0 if temperature is None and samples == 1 else temperature
        sampling = {"samples": samples, "temperature": temperature, "seed": seed, "retrieval_prob": retrieval_prob}
        choices = chosen_models(models, agent_key_env, requests, **sampling)
        for choice in choices.values():
            if retrieval_prob and choice.endpoint:
                raise ValueError(
                    f"--retrieval-prob {retrieval_prob:g}: {choice.name} is an endpoint, which cannot be shown step traces "
                    "within a response; name the model's folder or id, or leave the option out"
                )
        overrides += [] if answers is None else [("env_config.read_answer", answers)]
        _evaluate(choices, benchmarks, max_questions, output, job, overrides)


def _evaluate(
    choices: dict[str, AgentChoice],
    benchmarks: str | None,
    max_questions: int | None,
    output: Path,
    job: Path | None,
    overrides: list[tuple[str, Any]],
) -> None:
    from rapo_rllib.agents.journal import Journal
    from rapo_rllib.cli.evaluate.choices import configs_of, env_overrides
    from rapo_rllib.cli.evaluate.report import show
    from rapo_rllib.evaluation.models import evaluate_model, model_settings

    asked = _asked(benchmarks, max_questions, env_overrides(overrides).get("scorer", "auto"))
    configs = configs_of(choices, asked, job, overrides)
    of_models = zip(choices, configs, strict=True)
    settings = {label: model_settings(config, choices[label], asked) for label, config in of_models}
    made_of = {"models": settings, "questions": {each.benchmark.name: each.sum for each in asked}}
    samples = next(iter(choices.values())).samples
    with Journal(output, made_of, samples) as journal:
        for (label, choice), config in zip(choices.items(), configs, strict=True):
            with attempts_display(label) as display:
                evaluate_model(label, choice, config, asked, journal, display)
        found = _numbers(settings, asked, journal)
    file = output / RESULTS
    file.write_text(json.dumps({"settings": settings, "benchmarks": found}, indent=2) + "\n", encoding="utf-8")
    typer.echo(f"The numbers are in {file}, transcripts beside it.")
    show(found, settings)


def _asked(benchmarks: str | None, max_questions: int | None, scorer: Any) -> list[AskedBenchmark]:
    from rapo_rllib.cli.evaluate.choices import chosen_data
    from rapo_rllib.envs.benchmarks import BENCHMARKS, own_benchmark
    from rapo_rllib.evaluation.models import AskedBenchmark
    from rapo_rllib.rewards import check_scorer

    in_words = check_scorer(scorer)[0] in ("qa", "qa_em")
    named = [(BENCHMARKS.get(name) or own_benchmark(name, in_words), path) for name, path in chosen_data(benchmarks).items()]
    return [AskedBenchmark.of(benchmark, path, max_questions) for benchmark, path in named]


def _numbers(settings: dict[str, Any], asked: Sequence[AskedBenchmark], journal: Journal) -> dict[str, Any]:
    """Compute the numbers of every model on every benchmark, and the paired difference of each later model to the first."""
    from rapo_rllib.evaluation.metrics import accuracies, paired_difference, summary

    found: dict[str, Any] = {}
    for each in asked:
        name, models, first = each.benchmark.name, {}, None
        for label, own in settings.items():
            attempts = [journal.outcomes((label, name, question.id)) for question in each.questions]
            sampling = {key: own[key] for key in ("temperature", "seed")}
            models[label] = {"model": own["name"], **sampling, **summary(attempts)}
            if first is None:
                first = accuracies(attempts)
            else:
                models[label]["to_first"] = paired_difference(first, accuracies(attempts))
        found[name] = {"models": models}
    return found
