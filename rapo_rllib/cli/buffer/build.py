"""``rllib buffer build``: an off-policy agent answers the questions of a job, and its best steps become a Step-Trace Buffer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rapo_rllib.cli.buffer.commands import buffer_app
from rapo_rllib.cli.jobs import job_config
from rapo_rllib.cli.options import Concurrency, Extra, KeyVariables, Overrides, Seed, Timeout, json_object
from rapo_rllib.cli.terminal import INTERRUPTED, attempts_display, fail, progress_bar
from rapo_rllib.errors import RolloutError

if TYPE_CHECKING:
    from rapo_rllib.agents.build import Keeping
    from rapo_rllib.agents.journal import Journal
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
            help="The agent: a Hugging Face id or folder, a packaged model, a checkpoint, or http(s)://.../v1#MODEL.",
            show_default=False,
        ),
    ],
    samples: Annotated[int, typer.Option(min=1, help="Trajectories of each question.")] = 16,
    keep: Annotated[int, typer.Option(min=1, help="How many of them are kept: those with the highest reward.")] = 5,
    min_reward: Annotated[float | None, typer.Option(help="The least reward that is kept (default: above 0).")] = None,
    max_questions: Annotated[int | None, typer.Option(min=1, help="Only the first so many training questions.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the sampling (default: the job's).")] = None,
    seed: Seed = None,
    source: Annotated[str | None, typer.Option(help="Under which name traces are stored (default: the model's).")] = None,
    uri: Annotated[str | None, typer.Option(help="Where to store, in place of the job's.")] = None,
    collection: Annotated[str | None, typer.Option(help="In which collection, in place of the job's.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of all attempts (default: beside the buffer).")
    ] = None,
    agent_key_env: KeyVariables = None,
    agent_concurrency: Concurrency = 16,
    agent_timeout_s: Timeout = 120.0,
    agent_extra: Extra = None,
    set_: Overrides = None,
) -> None:
    """Let an agent answer the training questions of JOB and store its best steps. Run it again to go on after a kill."""
    from rapo_rllib.agents.build import Keeping
    from rapo_rllib.cli.evaluate.choices import chosen_models

    extra = json_object(agent_extra, "--agent-extra") or {}
    requests = {"concurrency": agent_concurrency, "timeout_s": agent_timeout_s, "extra": extra}
    sampling = {"samples": samples, "temperature": temperature, "seed": seed}
    try:
        models = chosen_models([agent], agent_key_env, requests, **sampling, option="--agent")
        ((name, choice),) = models.items()
        keeping = Keeping(source or name, keep, min_reward)
        config = job_config(job, set_)
        buffer = config.settings.buffer
        place = replace(buffer, uri=uri or buffer.uri, collection=collection or buffer.collection)
        _build(config, choice, keeping, place, output or _folder(place, keeping.source), max_questions)
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
    folder: Path,
    max_questions: int | None,
) -> None:
    from rapo_rllib.agents.asking import Progress, ask
    from rapo_rllib.agents.journal import SETTINGS, Journal, sum_of_questions
    from rapo_rllib.agents.setup import answer_settings, make_agent_factory
    from rapo_rllib.buffer.build import build_lock
    from rapo_rllib.buffer.store import StepTraceBuffer

    settings, source, name = config.settings, config.question_source, keeping.source
    if not (folder / SETTINGS).exists():  # check the agent; in later runs it may be gone
        make_agent_factory(settings, source, choice)
    questions = source.questions("train")
    asked = _asked(source, questions[:max_questions], bool(config.evaluation_interval))
    made_of = {**answer_settings(settings, source, choice), "source": name, "questions": sum_of_questions(questions)}
    with closing(StepTraceBuffer(place)) as buffer, build_lock(buffer):
        buffer.create()  # its errors show now; then it is closed, so that others may use it while the agent is asked
    with Journal(folder, made_of, choice.samples, choice.samples // 2) as journal:
        try:
            found = sum((name, "", question.id) in journal for question in asked)
            if found < len(asked):
                with closing(make_agent_factory(settings, source, choice)()) as agent, attempts_display(name) as display:
                    progress = Progress(choice.samples * len(asked), choice.samples * found)
                    ask(agent, (name, ""), asked, journal, progress, display)
        except (ValueError, RolloutError):
            _store(keeping, asked, journal, place)
            raise
        _store(keeping, asked, journal, place)
        _tell(keeping, asked, journal, made_of)
        typer.echo(f"All attempts are in {journal.transcripts}.")
    if not keeping.trajectories:
        fail(f"No attempt was kept: {'none is right' if keeping.min_reward is None else 'see --min-reward'}.")
    if not keeping.unfinished:
        typer.echo("To train with it as it is, set step_trace_buffer.traces: null in the job.")


def _store(keeping: Keeping, asked: Sequence[Question], journal: Journal, place: BufferSettings) -> None:
    """Store the steps of the best attempts at finished questions."""
    from rapo_rllib.buffer.store import StepTraceBuffer

    with closing(StepTraceBuffer(place)) as buffer, progress_bar("questions", of=asked) as each:
        keeping.store(journal, each, buffer)
        count = buffer.count()
    typer.echo(f"Collection {place.collection!r} at {place.uri} holds {count:,} step traces.")


def _asked(source: QuestionSource, questions: Sequence[Question], evaluates: bool) -> list[Question]:
    """Select the training questions, each once, without those that the job's evaluation asks."""
    from rapo_rllib.buffer.leak_guard import LeakGuard

    found = {question.id: question for question in questions}
    guard = LeakGuard(question.text for question in (source.questions("test") if evaluates else ()))
    asked = [question for question in found.values() if not guard.leaks(question.text)]
    if len(asked) < len(found):
        typer.echo(f"left out {len(found) - len(asked):,} training questions that are also asked in the evaluation")
    if not asked:
        raise ValueError(
            "no training question is left: name another test data set in the job, or allow more by --max-questions"
        )
    return asked


def _tell(keeping: Keeping, asked: Sequence[Question], journal: Journal, settings: dict[str, Any]) -> None:
    """Print the numbers of all attempts, and how many trajectories and steps were kept and stored."""
    from rapo_rllib.cli.evaluate.report import by_name, show
    from rapo_rllib.evaluation.metrics import summary

    attempts = [journal.outcomes((keeping.source, "", question.id)) for question in asked]
    numbers = summary(attempts)
    show({"": {"models": {keeping.source: numbers}}}, {keeping.source: settings})
    typer.echo(f"ends: {by_name(numbers['ends'])}")
    typer.echo(f"{keeping.trajectories:,} trajectories kept, {keeping.steps:,} steps; {keeping.added:,} stored now")
    if keeping.unfinished:
        typer.echo(
            f"not finished: {keeping.unfinished:,} questions at which most attempts failed; the same command asks them again, "
            "and completes the buffer"
        )


def _folder(place: BufferSettings, source: str) -> Path:
    """Name the folder of a source's attempts: beside the file of a Lite path; for a server, in the working directory."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source).strip("-.") or "agent"
    folder = Path() if "://" in place.uri else Path(place.uri).expanduser().parent
    name = "" if "://" in place.uri else f"{Path(place.uri).stem}."
    return folder / f"{name}{place.collection}.{plain}"
