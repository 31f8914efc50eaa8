"""A job's buffer and the questions of its evaluation."""

from pathlib import Path

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.off_policy import open_buffer
from rapo_rllib.algorithm.trial_files import RunName
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.monitoring.progress import Progress


class Lines(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__("buffer-setup")
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def opened(config: RAPOConfig, test_questions, train_questions=()) -> tuple[int, str]:
    """Number of step traces, and what was said."""
    progress = Lines()
    job = (config.settings, config.question_source)
    buffer, upkeep = open_buffer(*job, progress, RunName("run"), test_questions, train_questions)
    assert upkeep.take([]).get("coverage") == upkeep.coverage
    count = buffer.count()
    assert all(upkeep._guard.leaks(question.text) for question in test_questions if question.text)  # when it grows, too
    upkeep.close()
    buffer.close()
    return count, "\n".join(progress.said)


def test_evaluation_questions_are_left_out_and_refused(tmp_path: Path) -> None:
    settings = {"uri": str(tmp_path / "t.db"), "max_traces": 12, "timeout_s": 60.0}
    config = RAPOConfig().environment("rapo/word_problems").training(step_trace_buffer=settings)
    first = next(iter(config.question_source.expert_trajectories())).question
    count, said = opened(config, [first])
    assert count == 12
    assert "left out 1 trajectories that answer questions of the evaluation" in said
    count, said = opened(config, SeedQuestions(3))  # no texts: nothing is known, nothing is said
    assert (count, "left out" in said) == (12, False)
    known = config.question_source.questions("train")[:20]
    with pytest.raises(ValueError, match=r"step traces of \d+ evaluation questions, such as .*rllib buffer stats"):
        opened(config, known)


def test_how_many_training_questions_have_step_traces_is_said(tmp_path: Path) -> None:
    settings = {"uri": str(tmp_path / "t.db"), "max_traces": 12, "timeout_s": 60.0}
    task = {"num_train": 1200, "steps": [2, 2]}  # three steps each
    config = RAPOConfig().environment("rapo/word_problems", env_config=task).training(step_trace_buffer=settings)
    assert (
        "the Step-Trace Buffer holds 12 step traces: step traces for 4 of 1,200 training questions"
        in (opened(config, [], config.question_source.questions("train"))[1])
    )
    assert "training questions" not in opened(config, [], SeedQuestions(3))[1]
