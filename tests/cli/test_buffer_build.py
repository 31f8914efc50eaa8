"""``rllib buffer build`` with an endpoint: stored, killed and gone on with, two agents side by side, and mistakes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli_runs import forked
from local_service import Reply, Service, local_service
from sums import Solver, write_job
from typer.testing import CliRunner

from rapo_rllib.buffer.build import ensure_built
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.cli.main import app
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery, StepTrace

COUNT = 8


@pytest.fixture
def folder(tmp_path: Path, small_model: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path, small_model, COUNT)
    return tmp_path


def arguments(server: Service, *more: str) -> list[str]:
    asked = ["--agent", f"{server.url}/v1#solver", "--agent-concurrency", "4"]
    return ["buffer", "build", "job.yaml", *asked, "--samples", "4", "--keep", "2", "--seed", "1", *more]


def run(*given: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(given))
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


def stored(uri: str = "steps.db") -> list[StepTrace]:
    """What the buffer holds, as training would open it."""
    buffer = StepTraceBuffer(BufferSettings(uri=uri, traces=None))
    try:
        count = ensure_built(buffer, None)
        found = sorted(buffer.all_traces(), key=lambda trace: trace.id)
        assert len(found) == count
        query = HistoryQuery(found[0].question, found[0].history)
        assert buffer.retrieve([query])[0][0].similarity > 0.99
        return found
    finally:
        buffer.close()


def attempts(name: str = "steps.step_traces.solver") -> dict[str, list[dict[str, Any]]]:
    """Rows of the transcripts, by question."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (Path(name) / "transcripts.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["question_id"], []).append(row)
    return found


def test_built_repeated_and_enlarged(folder: Path) -> None:
    solver = Solver()
    with local_service(solver) as server:
        output = run(*arguments(server, "--max-questions", "5"))
        asked = solver.count
        assert "20/20" in output
        first = stored()
        assert f"holds {len(first)} step traces" in output
        assert {(trace.source, trace.reward) for trace in first} == {("solver", 1.0)}
        again = run(*arguments(server, "--max-questions", "5"))
        assert solver.count == asked and "0 stored now" in again and stored() == first
        run(*arguments(server))
        assert solver.asked == {f"sums-{i}": 4 for i in range(1, COUNT + 1)}
        rows = attempts()
        right = [len([row for row in rows[f"sums-{i}"] if row["correct"]]) for i in range(1, COUNT + 1)]
        assert len(stored()) == 2 * sum(min(2, each) for each in right) > len(first)  # --keep, of two steps each
        asked = solver.count
        run(*arguments(server, "--keep", "1", "--uri", "one.db", "--output", "steps.step_traces.solver"))
    assert solver.count == asked and len(stored("one.db")) == 2 * sum(min(1, each) for each in right)


def test_other_questions_in_the_same_file_are_refused(folder: Path) -> None:
    with local_service(Solver()) as server:
        run(*arguments(server, "--max-questions", "1"))
        text = (folder / "sums.jsonl").read_text()
        (folder / "sums.jsonl").write_text(text.replace("What is 0 + 3?", "What is 1 + 3?"))
        assert "settings.json is of another command, with other questions" in run(*arguments(server), status=1)
        (folder / "sums.jsonl").write_text(text)
        run(*arguments(server, "--max-questions", "2"))


@pytest.mark.slow
def test_killed_it_goes_on_and_ends_as_if_nobody_had(folder: Path) -> None:
    transcripts = folder / "steps.step_traces.solver" / "transcripts.jsonl"
    solver = Solver(lambda number: time.sleep(0.05))  # slow enough to be killed half-way
    with local_service(solver) as server:
        killed = forked(folder, *arguments(server))
        while killed.is_alive() and not (transcripts.exists() and transcripts.read_bytes().count(b"\n") >= 8):
            time.sleep(0.01)
        killed.kill()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        finished = list(attempts())
        assert 2 <= len(finished) < COUNT
        time.sleep(0.5)  # requests that were under way
        asked = solver.asked.copy()
        output = run(*arguments(server))
        assert f"{4 * len(finished)} were there before" in output
        assert all(solver.asked[question] == asked[question] == 4 for question in finished)
        assert set(solver.asked) == {f"sums-{i}" for i in range(1, COUNT + 1)}
        run(*arguments(server, "--uri", "unkilled.db"))
    assert {question: len(rows) for question, rows in attempts().items()} == {f"sums-{i}": 4 for i in range(1, COUNT + 1)}
    assert stored() == stored("unkilled.db")


def test_questions_of_the_evaluation_are_not_asked(folder: Path) -> None:
    evaluated = folder / "evaluated.jsonl"
    evaluated.write_text(json.dumps({"question": " what is 1 +  4?", "answer": "5"}) + "\n")
    solver = Solver()
    with local_service(solver) as server:
        changes = ("--set", "evaluation_interval=1", "--set", f"env_config.test_dataset={evaluated}")
        output = run(*arguments(server, "--max-questions", "3", *changes))
    assert "left out 1 training questions that are also asked in the evaluation" in output
    assert set(solver.asked) == {"sums-1", "sums-3"}


def test_two_agents_side_by_side(folder: Path) -> None:
    with local_service(Solver()) as server:
        few = ("--max-questions", "3")
        run(*arguments(server, *few))
        one = stored()
        run(*arguments(server, *few, "--source", "second"))
        both = stored()
        assert "No attempt was kept" in run(*arguments(server, *few, "--source", "third", "--min-reward", "2"), status=1)
    assert [trace for trace in both if trace.source == "solver"] == one
    assert len([trace for trace in both if trace.source == "second"]) == len(one)


def test_an_agent_that_dies_is_not_taken_for_one_that_failed(folder: Path) -> None:
    dead = [True]
    solver = Solver(lambda number: Reply(status=400) if dead and number > 64 else None)
    with local_service(solver) as server:
        output = run(*arguments(server, "--samples", "16"), status=1)
        assert "attempts in a row failed: agent answers with status 400" in output and "run again, continues" in output
        assert "holds 0 step traces" not in output and "To train with it" not in output  # but it is not complete
        with pytest.raises(ValueError, match="there is no complete buffer"):
            stored()
        dead.clear()
        output = run(*arguments(server, "--samples", "16"))
    assert "128/128" in output and "not finished" not in output
    assert len({trace.question_id for trace in stored()}) > 5


def test_an_environment_that_always_fails_ends_the_build(folder: Path) -> None:
    (folder / "broken_env.py").write_text(BROKEN)
    job = (folder / "job.yaml").read_text().replace("env: rapo/questions", "env: broken_env.Broken")
    (folder / "job.yaml").write_text(job)
    with local_service(Solver()) as server:
        output = run(*arguments(server, "--max-questions", "2"), status=1)
    assert "not one attempt at 2 questions came about: " in output and "the data base is gone" in output


BROKEN = """
from rapo_rllib.envs.questions import Questions


class Broken(Questions):
    def step(self, action):
        raise OSError("the data base is gone")
"""


def test_what_came_of_it_is_told(folder: Path) -> None:
    solver = Solver(lambda number: Reply(status=400) if number == 3 else None)
    with local_service(solver) as server:
        lines = run(*arguments(server, "--max-questions", "4", "--min-reward", "-1")).splitlines()
    told = "\n".join(lines)
    assert "ends: answer 15, error 1" in told and "8 trajectories kept, 16 steps; 16 stored now" in told
    assert "solver: 1 of 16 attempts failed and count as wrong: agent answers with status N" in told
    assert "16/16" in told and "1 failed]" in told and "accuracy" in told


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--agent", "http://127.0.0.1:1/v1"], "how does the endpoint call its model? Write http://127.0.0.1:1/v1#MODEL"),
        (["--uri", "steps"], "step_trace_buffer.uri: 'steps' is neither"),
        (["--set", "group_sizes=3"], "unknown key"),
        (["--set", "lr={grid_search: [1, 2]}"], "describes 2 trials"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, more: list[str], message: str) -> None:
    with local_service(lambda _: Reply(status=404)) as server:
        assert message in run(*arguments(server, *more), status=1)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("./gone", "--agent: there is no folder './gone'"),
        ("checkpoint", "was written without its policy as a Hugging Face folder"),
    ],
)
def test_an_agent_that_is_not_there(folder: Path, agent: str, message: str) -> None:
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "rllib_checkpoint.json").write_text("{}")
    assert message in run("buffer", "build", "job.yaml", "--agent", agent, status=1)
