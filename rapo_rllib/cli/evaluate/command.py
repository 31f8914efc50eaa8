"""``rllib evaluate``: language models on named benchmarks, or a checkpoint of any RLlib algorithm in its environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib.cli.endings import one_line_errors
from rapo_rllib.cli.options import json_object, key_value

if TYPE_CHECKING:
    from rapo_rllib.agents.setup import AgentChoice
    from rapo_rllib.algorithm.config import RAPOConfig
    from rapo_rllib.cli.evaluate.settings_source import SettingsSource
    from rapo_rllib.evaluation.journal import EvaluationJournal
    from rapo_rllib.evaluation.models import ModelRun
    from rapo_rllib.evaluation.plan import EvaluationPlan

RESULTS = "results.json"
_OF_EPISODES = ("algo", "env", "episodes", "steps")  # parameters that mean something for other algorithms only
_OF_ALL = ("models", "output", "set_")


def evaluate(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            help="Checkpoints, Hugging Face ids or folders, packaged models, or http(s)://.../v1#MODEL.", show_default=False
        ),
    ],
    benchmarks: Annotated[
        str | None,
        typer.Option("--benchmarks", "-b", help="Names, or files of your own, with commas between: gsm8k,eval.jsonl."),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="NAME=PATH, the local copy of a benchmark, or data of your own.")
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
    seed: Annotated[int | None, typer.Option(help="Of the sampling (default: 0; none is sent to an endpoint).")] = None,
    tools: Annotated[
        str | None,
        typer.Option(help="Tools as in env_config.tools, as YAML: [python], [] (default: the job's, the benchmark's)."),
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(help="As in env_config.scorer, as YAML: judge, ... (default: the benchmark's).")
    ] = None,
    retrieval_prob: Annotated[
        float, typer.Option(help="Chance of a retrieval after a completed step, from the step_trace_buffer (default: none).")
    ] = 0.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of results and transcripts; an interrupted evaluation resumes there.")
    ] = Path("evaluation"),
    job: Annotated[
        Path | None,
        typer.Option(help="A job of RAPO whose protocol, budgets, engine are used (default: the first checkpoint's)."),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, a config key in place of those.")] = None,
    agent_api: Annotated[str, typer.Option(help="What endpoints are asked by: chat or completions.")] = "chat",
    agent_tokenizer: Annotated[str | None, typer.Option(help="Of an endpoint's model, for completions.")] = None,
    agent_key_env: Annotated[
        list[str] | None,
        typer.Option(help="Variable that holds the endpoint's key, or HOST=VARIABLE (default: AGENT_API_KEY; unset: no key)."),
    ] = None,
    agent_concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time, of an endpoint.")] = 16,
    agent_timeout_s: Annotated[float, typer.Option(min=0.1, help="Of one request to an endpoint.")] = 120.0,
    agent_extra: Annotated[str | None, typer.Option(help="Further fields of its requests, as JSON.")] = None,
    algo: Annotated[str | None, typer.Option(help="Of RLlib: what the checkpoint must be of.")] = None,
    env: Annotated[str | None, typer.Option("--env", "-e", help="Environment, in place of the checkpoint's.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes of any other algorithm (default: 10).")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of any other algorithm, in place of episodes.")] = None,
) -> None:
    """Evaluate language models on benchmarks, without retrieval unless asked; or a checkpoint of any RLlib algorithm."""
    from rapo_rllib.cli.evaluate.choices import chosen_models
    from rapo_rllib.cli.evaluate.settings_source import SettingsSource

    with one_line_errors(f"Stopped. The same command continues with what is left; {output} has the rest."):
        if not _answers_questions(context, models):
            _episodes(models[0], output, algo, env, episodes, steps, set_ or [])
            return
        rest: dict[str, Any] = {
            "samples": samples,
            "temperature": 0.0 if temperature is None and samples == 1 else temperature,
            "concurrency": agent_concurrency,
            "retrieval_prob": retrieval_prob,
            "api": agent_api,
            "tokenizer": agent_tokenizer,
            "timeout_s": agent_timeout_s,
            "extra": json_object(agent_extra, "--agent-extra") or {},
        }
        choices = chosen_models(models, seed, agent_key_env or [], rest)
        _check_retrieval(choices, retrieval_prob)
        overrides = (*(set_ or ()), *([] if answers is None else [f"env_config.read_answer={answers}"]))
        plan = replace(_plan(benchmarks, data or [], max_questions, tools, scorer), retrieval_prob=retrieval_prob)
        _evaluate(choices, plan, output, SettingsSource(job, overrides))


def _check_retrieval(choices: list[AgentChoice], retrieval_prob: float) -> None:
    from rapo_rllib.evaluation.retrieval import check_retrieval_prob

    check_retrieval_prob(retrieval_prob)
    for choice in choices:
        if retrieval_prob and choice.is_endpoint:
            raise ValueError(
                f"--retrieval-prob {retrieval_prob:g}: {choice.name} is an endpoint, which cannot be shown step traces "
                "within a response; name the model's folder or id, or leave the option out"
            )


def _is_of_another_algorithm(model: str) -> bool:
    from rapo_rllib.checkpoints.folder import MANIFEST

    folder = Path(model).expanduser()
    return (folder / "rllib_checkpoint.json").is_file() and not (folder / MANIFEST).is_file()


def _answers_questions(context: typer.Context, models: list[str]) -> bool:
    """Whether the models are language models, not a checkpoint of another algorithm.

    Raises:
        ValueError: several models, of which one is of another algorithm; or an option was given that would do nothing.
    """
    others = [model for model in models if _is_of_another_algorithm(model)]
    if others and len(models) > 1:
        raise ValueError(f"{others[0]}: checkpoints of RLlib's other algorithms are evaluated one at a time")
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in _OF_ALL:
            continue
        if others and name not in _OF_EPISODES:
            raise ValueError(
                f"{parameter.opts[0]}: the checkpoint is of another algorithm than RAPO, which answers no questions"
            )
        if not others and name in _OF_EPISODES:
            raise ValueError(
                f"{parameter.opts[0]} is for checkpoints of RLlib's other algorithms; {models[0]!r} is a language model"
            )
    return not others


def _episodes(
    model: str,
    output: Path,
    algo: str | None,
    env: str | None,
    episodes: int | None,
    steps: int | None,
    overrides: list[str],
) -> None:
    from rapo_rllib.cli.evaluate.episodes import EpisodeOptions, evaluate_episodes

    if episodes is not None and steps is not None:
        raise ValueError("--episodes and --steps: give one of them")
    options = EpisodeOptions(algo, env, episodes or 10, steps, tuple(map(key_value, overrides)))
    evaluate_episodes(Path(model).expanduser(), _new_file(output), options)


def _plan(
    benchmarks: str | None, data: list[str], max_questions: int | None, tools: str | None, scorer: str | None
) -> EvaluationPlan:
    from rapo_rllib.cli.evaluate.choices import chosen_data
    from rapo_rllib.cli.yaml_text import yaml_value
    from rapo_rllib.envs.benchmarks import BENCHMARKS, own_benchmark
    from rapo_rllib.evaluation.plan import EvaluationPlan, asked_benchmark
    from rapo_rllib.rewards import check_scorer

    paths = chosen_data(benchmarks, data)
    chosen = None if tools is None else yaml_value(tools)
    if chosen is not None and not isinstance(chosen, list):
        raise ValueError(f"--tools {tools}: must be a list, for example [python], or [] for none")
    scored = "auto" if scorer is None else yaml_value(scorer)
    in_words = check_scorer(scored)[0] in ("qa", "qa_em")
    asked = tuple(
        asked_benchmark(BENCHMARKS.get(name) or own_benchmark(name, in_words), path, max_questions)
        for name, path in paths.items()
    )
    return EvaluationPlan(asked, None if chosen is None else tuple(chosen), scored)


def _new_file(output: Path) -> Path:
    """``results.json`` of a folder that has none yet."""
    if (output / RESULTS).exists():
        raise ValueError(f"--output {output}: holds the results of another evaluation: name another folder")
    output.mkdir(parents=True, exist_ok=True)
    return output / RESULTS


def _evaluate(choices: list[AgentChoice], plan: EvaluationPlan, output: Path, source: SettingsSource) -> None:
    import json

    from rapo_rllib.cli.evaluate.report import results, show
    from rapo_rllib.evaluation.journal import TRANSCRIPTS, EvaluationJournal
    from rapo_rllib.evaluation.models import ModelRun, decided_by, labels
    from rapo_rllib.evaluation.settings import resolved_settings

    configs = source.configs(choices, plan)
    resolved = [resolved_settings(config, choice, plan) for config, choice in zip(configs, choices, strict=True)]
    models = dict(zip(labels(choices), resolved, strict=True))
    file = _new_file(output)
    with EvaluationJournal(output, decided_by(models, plan), choices[0].samples) as journal:
        named = zip(models.items(), choices, strict=True)
        runs = [ModelRun(name, choice, settings, journal.of(name)) for (name, settings), choice in named]
        for run, config in zip(runs, configs, strict=True):
            _ask(config, run, plan, journal)
    found = results(runs, plan)
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    show(found)
    typer.echo(f"The numbers are in {file}, the transcripts in {output / TRANSCRIPTS}.")


def _ask(config: RAPOConfig, run: ModelRun, plan: EvaluationPlan, journal: EvaluationJournal) -> None:
    """Let a model answer what it has not answered yet."""
    from rapo_rllib.cli.build_display import counted
    from rapo_rllib.evaluation.models import evaluate_model

    samples, before = run.choice.samples, len(run.rows)
    total, ended = samples * sum(len(asked.questions) for asked in plan.asked), samples * before
    typer.echo(f"{run.label}: {total:,} attempts" + (f", of which {ended:,} are there already" if before else ""))
    with counted("attempts") as progress:

        def tell(progress: Any = progress) -> None:
            nonlocal ended
            ended += 1
            progress(ended, total)

        evaluate_model(config, run, plan, tell, journal.add)
