"""``rllib buffer build``: an off-policy agent answers the questions of a job, and its best steps become a Step-Trace Buffer."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rapo_rllib.cli.buffer.options import buffer_app
from rapo_rllib.cli.build_display import Display, duration
from rapo_rllib.cli.endings import INTERRUPTED, fail
from rapo_rllib.cli.options import RunOptions, json_object, key_value
from rapo_rllib.errors import RolloutError

if TYPE_CHECKING:
    from rapo_rllib.agents.build import AgentBuild, Keeping
    from rapo_rllib.agents.journal import Totals
    from rapo_rllib.agents.setup import AgentChoice
    from rapo_rllib.algorithm.config import RAPOConfig
    from rapo_rllib.config.question_source import QuestionSource
    from rapo_rllib.settings import BufferSettings
    from rapo_rllib.types import Question


@buffer_app.command("build")
def build(
    job: Annotated[Path, typer.Argument(help="The training job: .yaml, .yml or .py.", show_default=False)],
    agent: Annotated[
        str,
        typer.Option(
            help="Who writes: a Hugging Face id or folder, a packaged model, a checkpoint of ours, or http(s)://.../v1.",
            show_default=False,
        ),
    ],
    samples: Annotated[int, typer.Option(min=1, help="Trajectories of each question.")] = 16,
    keep: Annotated[int, typer.Option(min=1, help="How many of them are kept: those with the highest reward.")] = 5,
    min_reward: Annotated[float | None, typer.Option(help="The least reward that is kept (default: above 0).")] = None,
    max_questions: Annotated[int | None, typer.Option(min=1, help="Only the first so many training questions.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the sampling (default: the job's).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling (default: the job's; none is sent to an endpoint).")] = None,
    source: Annotated[str | None, typer.Option(help="Under which name traces are stored (default: the model's).")] = None,
    uri: Annotated[str | None, typer.Option(help="Where to store, in place of the job's.")] = None,
    collection: Annotated[str | None, typer.Option(help="In which collection, in place of the job's.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Files of trajectories and progress, without ending (default: beside the buffer).")
    ] = None,
    agent_model: Annotated[str, typer.Option(help="How the endpoint calls its model.")] = "",
    agent_api: Annotated[str, typer.Option(help="What the endpoint is asked by: chat or completions.")] = "chat",
    agent_tokenizer: Annotated[str | None, typer.Option(help="Of the endpoint's model, for completions.")] = None,
    agent_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the endpoint's key; not set: none is sent.")
    ] = "AGENT_API_KEY",
    agent_concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time, of an endpoint.")] = 16,
    agent_timeout_s: Annotated[float, typer.Option(min=0.1, help="Of one request to the endpoint.")] = 120.0,
    agent_extra: Annotated[
        str | None, typer.Option(help="Further fields of its requests, as JSON; null leaves one of ours out.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, a config key in place of the file's.")] = None,
) -> None:
    """Let an agent answer the training questions of JOB and store its best steps. Run it again to go on after a kill."""
    from rapo_rllib.agents.build import Keeping
    from rapo_rllib.agents.setup import AgentChoice

    try:
        choice = AgentChoice(
            name=agent,
            samples=samples,
            temperature=temperature,
            seed=seed,
            concurrency=agent_concurrency,
            model=agent_model,
            api=agent_api,
            tokenizer=agent_tokenizer,
            key_variable=agent_key_env,
            timeout_s=agent_timeout_s,
            extra=json_object(agent_extra, "--agent-extra") or {},
        )
        keeping = Keeping(source or choice.short_name, keep, min_reward)
        config = job_config(job, set_ or [])
        buffer = config.settings.buffer
        place = replace(buffer, uri=uri or buffer.uri, collection=collection or buffer.collection)
        _build(config, choice, keeping, place, out, max_questions)
    except KeyboardInterrupt:
        fail("Stopped. The same command, run again, continues from there.", INTERRUPTED)
    except (ValueError, RolloutError) as error:
        again = "" if isinstance(error, ValueError) else " The same command, run again, continues from where it was."
        fail(f"{error}{again}")


def _build(
    config: RAPOConfig,
    choice: AgentChoice,
    keeping: Keeping,
    place: BufferSettings,
    out: Path | None,
    max_questions: int | None,
) -> None:
    from rapo_rllib.agents.build import build_from_agent
    from rapo_rllib.agents.journal import Journal
    from rapo_rllib.agents.setup import fingerprint_fields, make_agent_factory
    from rapo_rllib.buffer.store import StepTraceBuffer
    from rapo_rllib.cli.buffer.build import AgentDisplay

    open_agent = make_agent_factory(config.settings, config.question_source, choice)
    asked = _asked(config.question_source, bool(config.evaluation_interval), max_questions)
    buffer = StepTraceBuffer(place)
    stem = out or _stem(place, keeping.source)
    made_of = {
        **fingerprint_fields(config.settings, config.question_source, choice),
        "source": keeping.source,
        "keep": keeping.keep,
        "min_reward": keeping.min_reward,
    }
    try:
        with Journal(stem, made_of) as journal:
            with AgentDisplay() as display:
                state = build_from_agent(open_agent, asked, journal, buffer, keeping, choice.samples, display)
            _conclude(state, buffer.count(), place, journal.traces_path)
    finally:
        buffer.close()


def _asked(source: QuestionSource, evaluates: bool, max_questions: int | None) -> list[Question]:
    """The training questions, each once; those that the job evaluates on are left out."""
    from rapo_rllib.buffer.leak_guard import LeakGuard

    found = {question.id: question for question in source.questions("train")[:max_questions]}
    guard = LeakGuard(question.text for question in (source.questions("test") if evaluates else ()))
    asked = [question for question in found.values() if not guard.leaks(question.text)]
    if len(asked) < len(found):
        typer.echo(f"left out {len(found) - len(asked):,} training questions that are also asked in the evaluation")
    return asked


def _conclude(state: AgentBuild, count: int, place: BufferSettings, traces_path: Path) -> None:
    from rapo_rllib.cli.buffer.build import summary_lines

    for line in summary_lines(state):
        typer.echo(line)
    typer.echo(f"Collection {place.collection!r} at {place.uri} holds {count:,} step traces.")
    typer.echo(f"The trajectories are in {traces_path}.")
    if not count:
        raise typer.Exit(1)
    typer.echo("To train with it as it is, set step_trace_buffer.traces: null in the job.")


def job_config(job: Path, overrides: list[str]) -> RAPOConfig:
    """The config of the one variant of the one experiment in ``job``."""
    from rapo_rllib.cli.train.run import prepare

    prepare(job)
    from rapo_rllib.algorithm.config import RAPOConfig
    from rapo_rllib.cli.train.checks import only_config
    from rapo_rllib.cli.train.experiments import read_experiments

    try:
        config = only_config(read_experiments(job, RunOptions(overrides=[key_value(item) for item in overrides])))
    except ValueError as error:
        raise ValueError(f"{job}: {error}") from error
    if not isinstance(config, RAPOConfig):
        raise ValueError(f"{job}: {type(config).__name__} has no text environment and no Step-Trace Buffer: give a job of RAPO")
    return config


def _stem(place: BufferSettings, source: str) -> Path:
    """Beside a Lite path; for a server, in this folder. Sources have files of their own."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source).strip("-.") or "agent"
    folder = Path() if "://" in place.uri else Path(place.uri).expanduser().parent
    name = "" if "://" in place.uri else f"{Path(place.uri).stem}."
    return folder / f"{name}{place.collection}.{plain}"


class AgentDisplay(Display):
    """Call it with every new state of a build."""

    def __call__(self, state: AgentBuild) -> None:
        """Show it, if it is time."""
        attempts = (state.total - state.found) * state.samples
        self.show(build_line(state), state.attempts, attempts, ended=state.totals.questions == state.total)


def build_line(state: AgentBuild) -> str:
    """Tell where it is, how fast it writes, and when it will be done: by attempts, of which a question takes several."""
    parts = [f"{state.totals.questions:,} of {state.total:,} questions"]
    if state.found:
        parts.append(f"{state.found:,} were finished before")
    parts.append(f"{state.attempts:,} attempts")
    parts.append(f"{state.totals.kept:,} trajectories kept")
    left = (state.total - state.found) * state.samples - state.attempts
    if state.attempts and state.seconds > 0:
        parts.append(f"{state.tokens / state.seconds:.0f} tokens/s")
        if left > 0:
            parts.append(f"{duration(left * state.seconds / state.attempts)} left")
    return " · ".join(parts)


def summary_lines(state: AgentBuild) -> list[str]:
    """Tell what came of a build, with what earlier runs of it did."""
    totals = state.totals
    lines = [
        f"questions: {totals.questions:,} of {state.total:,}, of which {totals.answered:,} have a trajectory that was kept",
        f"trajectories: {totals.attempts:,} written, {totals.kept:,} kept, {totals.steps:,} steps; {state.added:,} stored now",
        f"reward: {totals.reward / totals.attempts:.3f} on average over all that were written" if totals.attempts else "",
        f"ends: {_counted(totals)}" if totals.ends else "",
    ]
    lines += [f"failed {count:,} times: {error}" for error, count in totals.errors.most_common()]
    if state.seconds > 0 and state.attempts:
        speed = f"{state.tokens / state.seconds:.0f} tokens/s"
        lines.append(f"this run: {state.attempts:,} attempts in {duration(state.seconds)}, {speed}")
    if state.unfinished:
        lines.append(f"not finished: {state.unfinished:,} questions that the agent failed at; the same command asks them again")
    return [line for line in lines if line]


def _counted(totals: Totals) -> str:
    return ", ".join(f"{count:,} {end}" for end, count in totals.ends.most_common())
