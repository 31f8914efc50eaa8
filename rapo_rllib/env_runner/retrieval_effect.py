"""Effect of retrieval in a sampling phase: accuracy with and without it, shown traces, and copied answers.

Flow: ``metrics.py`` -> here. The counts beside the shares let warnings add iterations up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rapo_rllib.objective.retrieval_reward import unaided_retrieval_reward
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import FALLBACK, Retrieval, Trajectory


def effect_metrics(trajectories: Sequence[Trajectory], objective: ObjectiveSettings) -> dict[str, float]:
    """Counts end in ``_count``; everything else is a mean, 0 where there was nothing to take it of.

    Those that retrieved are compared with those that did not although they called a tool, after which they might have.
    """
    counted = [t for t in trajectories if not t.failed]
    retrieved = [t for t in counted if t.retrievals]
    whole = [t for t in counted if not t.given and t.end != "step"]  # not behind an expert's steps
    others = [t for t in whole if not t.retrievals and t.steps and t.steps[0].tool is not None]
    shown = [(t, r) for t in counted for r in t.own_retrievals if r.source != FALLBACK]
    answers = [(t, r) for t, r in shown if r.answer]
    wrong = [(t, r) for t, r in answers if not r.shows_answer]
    begun_right = [[t for t in those if t.steps and t.steps[0].right] for those in (retrieved, others)]
    return {
        "retrieved_count": float(len(retrieved)),
        "accuracy_retrieved": mean(t.correct for t in retrieved),
        "others_count": float(len(others)),
        "accuracy_others": mean(t.correct for t in others),
        "right_step_retrieved_count": float(len(begun_right[0])),
        "accuracy_right_step_retrieved": mean(t.correct for t in begun_right[0]),
        "right_step_others_count": float(len(begun_right[1])),
        "accuracy_right_step_others": mean(t.correct for t in begun_right[1]),
        "own_question": mean(r.own_question for _, r in shown),
        "shows_answer": mean(r.shows_answer for _, r in shown),
        "answers_count": float(len(answers)),
        "answers_copied": mean(_copied(t, r) for t, r in answers),
        "wrong_answers_count": float(len(wrong)),
        "wrong_answers_copied": mean(_copied(t, r) for t, r in wrong),
        "retrieval_reward_baseline": mean(z for t in others if (z := unaided_retrieval_reward(t, objective)) is not None),
    }


def _copied(trajectory: Trajectory, retrieval: Retrieval) -> bool:
    """Whether the trajectory answers what the step trace answers."""
    return _plain(trajectory.predicted) == _plain(retrieval.answer)


def _plain(answer: str) -> str:
    return " ".join(answer.casefold().split())


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    listed = [float(value) for value in values]
    return sum(listed) / len(listed) if listed else 0.0
