"""The rules of :mod:`rapo_rllib.monitoring.warnings`: numbers of the last iterations --> what is wrong, and what to do.

A rule gets the last iterations, oldest first, and the :class:`Past`. It warns only if the iterations have its metrics: an
algorithm that does not report them gets no warning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

RECENT = 3  # iterations that a rule looks at, so that one odd batch warns of nothing
PATIENCE = 5  # iterations before the rule on rewards warns: rewards may well be 0 at first
FALL = 3.0  # standard errors from which on a fall is not chance

Row = Mapping[str, float]  # one iteration: finite numbers by flat name, and num_hybrid and helps_who_failed of its config
Finding = tuple[str, str] | None  # what is wrong, and what to do


@dataclass
class Past:
    """Memory of earlier iterations of a training, oldest first."""

    first: list[Row] = field(default_factory=list)
    best_unhelped: list[Row] = field(default_factory=list)  # best in the share right of trajectories without retrieval

    def take(self, rows: Sequence[Row]) -> None:
        """Update from ``rows``, the last ``2 * RECENT`` iterations or all there are; rules call the last ``RECENT`` recent."""
        if len(self.first) < RECENT:
            self.first.append(rows[-1])
        earlier = rows[:-RECENT]
        now, before = _right(earlier, "others"), _right(self.best_unhelped, "others")
        if now is not None and (before is None or now[0] / now[1] >= before[0] / before[1]):
            self.best_unhelped = list(earlier)


Rule = Callable[[Sequence[Row], Past], Finding]

_SAMPLED, _RETRIEVAL, _LEARNED = "env_runners/", "env_runners/retrieval/", "learners/default_policy/"
_ENTROPY, _REWARD, _ACCURACY = _SAMPLED + "entropy", _SAMPLED + "episode_return_mean", _SAMPLED + "accuracy"


def errors_apart(right: float, count: float, other_right: float, other_count: float) -> float:
    """Count the standard errors by which one share is above another.

        z = (p - q) / √(r (1 - r) (1/m + 1/n)),   p = right / m, q = other_right / n, r = all right / (m + n)

    The pooled share r keeps the error above 0 if one share is 0 or 1. Trajectories of one question are not independent, so
    their z is too large, and a rule must set a higher threshold than usual.

    Args:
        right: the number right of ``count``.
        count: m.
        other_right: the number right of ``other_count``.
        other_count: n.

    Returns:
        z; 0 if all are right, or all are wrong. Example: 25 of 128 and 4 of 128: 4.1.
    """
    pooled = (right + other_right) / (count + other_count)
    error = math.sqrt(pooled * (1 - pooled) * (1 / count + 1 / other_count))
    return (right / count - other_right / other_count) / error if error else 0.0


def _last(rows: Sequence[Row], name: str, count: int = RECENT) -> list[float] | None:
    """Return the last ``count`` values of a metric; None if there are fewer."""
    values = [row[name] for row in rows[-count:] if name in row]
    return values if len(values) == count else None


def _share(rows: Sequence[Row], part: str, whole: str, at_least: float) -> float | None:
    """Return ``part`` / ``whole``, each summed over the last iterations; None below ``at_least``, or without counts."""
    wholes = _last(rows, whole)
    if wholes is None or not sum(wholes):
        return None
    share = sum(row.get(part, 0.0) for row in rows[-RECENT:]) / sum(wholes)
    return share if share >= at_least else None


def _part(rows: Sequence[Row], count: str, share: str, least: int) -> tuple[float, float] | None:
    """Sum count * share, and count, over the last iterations; None if the counts sum to less than ``least``."""
    counts, shares = _last(rows, count), _last(rows, share)
    if counts is None or shares is None or sum(counts) < least:
        return None
    return sum(each * of_it for each, of_it in zip(counts, shares, strict=True)), sum(counts)


def _told(share: float | None, what: str, advice: str) -> Finding:
    return None if share is None else (f"{share:.0%} {what}", advice)


def _nothing_retrieved(rows: Sequence[Row], past: Past) -> Finding:
    counts, chances = _last(rows, _RETRIEVAL + "count"), _last(rows, _SAMPLED + "retrieval_prob")
    if not counts or not chances or any(counts) or not all(chances) or not rows[-1]["num_hybrid"]:
        return None
    if any(row.get(_SAMPLED + "single_steps/groups") == row.get(_SAMPLED + "groups", 0.0) for row in rows[-RECENT:]):
        return None  # nothing is retrieved for a single step
    queries, empty, skipped, failures = (
        sum(row.get(_RETRIEVAL + name, 0.0) for row in rows[-RECENT:]) for name in ("queries", "empty", "skipped", "failures")
    )
    if not queries:
        why = "no trajectory asked: it asks after a completed tool call"
        advice = "see in the transcripts whether the policy calls tools; an example in protocol.examples shows it how"
    elif failures >= max(empty, skipped):
        why, advice = "the buffer does not answer", "see the log, and step_trace_buffer.uri and .timeout_s"
    elif skipped >= empty:
        why, advice = "the traces found do not fit into the response", "raise max_response_tokens"
    else:
        why = "nothing suitable was found"
        advice = "relax step_trace_buffer.filter, and see what the buffer holds: rllib buffer stats"
    return f"nothing was retrieved in {RECENT} iterations: {why}", advice


def _retrieval_failures(rows: Sequence[Row], past: Past) -> Finding:
    queries, failures = (rows[-1].get(_RETRIEVAL + name, 0.0) for name in ("queries", "failures"))
    gone = queries >= 20 and failures >= 0.5 * queries
    share = failures / queries if gone else _share(rows, _RETRIEVAL + "failures", _RETRIEVAL + "queries", 0.1)
    return _told(
        share, "of the retrievals failed", "see the log, and step_trace_buffer.uri; above 50% for 15 minutes the run stops"
    )


def _retrieval_harms(rows: Sequence[Row], past: Past) -> Finding:
    """Test whether trajectories that retrieve are right less often: one-sided, at 1 %, over the last iterations together."""
    with_it, without = (_right(rows, name) for name in ("retrieved", "others"))
    if with_it is None or without is None or rows[-1]["helps_who_failed"]:  # help then goes to harder questions
        return None
    (right, count), (right_without, count_without) = with_it, without
    if errors_apart(right_without, count_without, right, count) < 2.33:
        return None
    shares = (
        f"{right / count:.0%} of the trajectories that retrieve are right, {right_without / count_without:.0%} of the others"
    )
    advice = (
        "read in the transcripts what is shown (transcripts: true); have step traces of all training questions, "
        "filter.question: same, filter.hide_answers, or a lower retrieval_prob"
    )
    return f"{shares} that call a tool", advice


def _right(rows: Sequence[Row], name: str) -> tuple[float, float] | None:
    """Count the trajectories of a kind that were right in the last iterations, and all of that kind; None below 30."""
    return _part(rows, f"{_RETRIEVAL}{name}_count", f"{_RETRIEVAL}accuracy_{name}", 30)


def _answers_shown(rows: Sequence[Row], past: Past) -> Finding:
    found = _part(rows, _RETRIEVAL + "count", _RETRIEVAL + "shows_answer", 30)
    share = found[0] / found[1] if found and found[0] > 0.5 * found[1] else None
    advice = "see that those that retrieve nothing become better, too (accuracy_others); filter.hide_answers shows no such step"
    return _told(share, "of the steps that are shown hold the answer of the question", advice)


def _held_out_fell(rows: Sequence[Row], past: Past) -> Finding:
    """Compare the latest evaluation with the best one, which may be the one before the training."""
    best, latest, count = (rows[-1].get("rapo/" + name) for name in ("accuracy_best", "accuracy_after", "evaluated_questions"))
    if best is None or latest is None or not count:
        return None
    apart = errors_apart(best * count, count, latest * count, count)
    if apart < FALL:
        return None
    advice = (
        "go on from a checkpoint of before that, with a lower lr; see whether only trajectories that retrieve are still right "
        "(retrieval/accuracy_retrieved, accuracy_others)"
    )
    return f"held-out accuracy fell from {best:.1%} to {latest:.1%}, by {apart:.1f} standard errors", advice


def _unhelped_fell(rows: Sequence[Row], past: Past) -> Finding:
    """Compare with the best earlier iterations: without help at most half as many are right, beyond chance; with help, more."""
    helped, unhelped = (_right(rows, name) for name in ("retrieved", "others"))
    helped_then, unhelped_then = (_right(past.best_unhelped, name) for name in ("retrieved", "others"))
    if helped is None or unhelped is None or helped_then is None or unhelped_then is None:
        return None
    now, then = unhelped[0] / unhelped[1], unhelped_then[0] / unhelped_then[1]
    with_it, with_it_then = helped[0] / helped[1], helped_then[0] / helped_then[1]
    if now > then / 2 or with_it <= with_it_then or errors_apart(*unhelped_then, *unhelped) < FALL:
        return None
    text = (
        f"{now:.0%} of the trajectories that retrieve nothing are right, and were {then:.0%}; of those that retrieve it is "
        f"{with_it:.0%}, and was {with_it_then:.0%}: the policy learns to need help"
    )
    advice = "compare each kind with its own (advantage_baseline: kind), let retrieval_prob fall to 0, or filter.hide_answers"
    return text, advice


def _answers_copied(rows: Sequence[Row], past: Past) -> Finding:
    found = _part(rows, _RETRIEVAL + "wrong_answers_count", _RETRIEVAL + "wrong_answers_copied", 10)
    share = found[0] / found[1] if found and found[0] >= 0.3 * found[1] else None
    advice = "have step traces of all training questions, or filter.question: same; a policy that copies learns to copy"
    return _told(share, "of the wrong answers that step traces show are copied", advice)


def _little_covered(rows: Sequence[Row], past: Past) -> Finding:
    share = rows[-1].get("buffer/coverage", 1.0)
    if share >= 0.5 or not rows[-1]["num_hybrid"]:
        return None
    advice = (
        "raise step_trace_buffer.max_traces, import more (rllib buffer import), or let an agent write them (rllib buffer build)"
    )
    return f"the buffer has step traces for {share:.0%} of the training questions", advice


def _no_starts(rows: Sequence[Row], past: Past) -> Finding:
    share = _share(rows, _SAMPLED + "starts/groups_without", _SAMPLED + "starts/asked", 0.5)
    advice = "name a file with some of the training questions (expert_traces), or set expert_start_share to 0"
    return _told(share, "of the groups that may begin behind an expert's steps have none of their question", advice)


def _equal_rewards(rows: Sequence[Row], past: Past) -> Finding:
    share = _share(rows, _SAMPLED + "groups_without_signal", _SAMPLED + "groups", 0.5)
    if share is None:
        return None
    accuracy = rows[-1].get(_ACCURACY, 0.5)
    if accuracy >= 0.8:
        advice = "the questions are too easy by now: train on harder ones, or set dynamic_sampling: true"
    elif accuracy <= 0.2:
        advice = "the questions are too hard: begin with easier ones, raise group_size, or reward parts of the way"
    else:
        advice = "raise group_size or temperature, or set dynamic_sampling: true"
    groups = "every group has" if share == 1 else f"{share:.0%} of the groups have"
    return f"{groups} equal rewards, from which nothing is learned", advice


def _never_rewarded(rows: Sequence[Row], past: Past) -> Finding:
    accuracy, rewards = _last(rows, _ACCURACY, PATIENCE), _last(rows, _REWARD, PATIENCE)
    if accuracy is None or rewards is None or max(accuracy) > 0 or max(rewards) > 0:
        return None
    advice = "read some transcripts (transcripts: true): is the answer where the scorer looks for it, is the task too hard?"
    return f"no reward above 0 and no correct answer in {PATIENCE} iterations", advice


def _entropy_collapse(rows: Sequence[Row], past: Past) -> Finding:
    recent, begin = _last(rows, _ENTROPY), _last(past.first, _ENTROPY)
    if recent is None or begin is None or sum(recent) > 0.2 * sum(begin) or max(recent) > 0.1:
        return None
    advice = "lower lr, raise clip_high or temperature, or add kl_coeff; a checkpoint from before is the place to go on from"
    first, now = sum(begin) / RECENT, sum(recent) / RECENT
    return f"the entropy fell from {first:.2g} to {now:.2g} nats: the policy stopped exploring", advice


def _cut_for_length(rows: Sequence[Row], past: Past) -> Finding:
    share = _share(rows, _SAMPLED + "ends/length", _SAMPLED + "num_episodes", 0.5)
    return _told(share, "of the trajectories ended for length", "raise max_response_tokens, max_step_tokens or max_steps")


def _failed_trajectories(rows: Sequence[Row], past: Past) -> Finding:
    now = rows[-1].get(_SAMPLED + "ends/error", 0.0) / max(rows[-1].get(_SAMPLED + "num_episodes", 0.0), 1.0)
    share = now if now >= 0.5 else _share(rows, _SAMPLED + "ends/error", _SAMPLED + "num_episodes", 0.1)
    what = "of the trajectories failed and are not learned from"
    return _told(share, what, "see the log for what their environment raised")


def _wrong_format(rows: Sequence[Row], past: Past) -> Finding:
    rates = _last(rows, _SAMPLED + "format_rate")
    if rates is None or max(rates) > 0.05:
        return None
    advice = "show the format in protocol.examples, train the model on examples first, or reward it (env_config.reward)"
    return f"only {rates[-1]:.0%} of the trajectories keep the answer's format", advice


def _tool_errors(rows: Sequence[Row], past: Past) -> Finding:
    totals: dict[str, dict[str, float]] = {}  # by tool: its calls, and failures by reason
    for row in rows[-RECENT:]:
        for name, value in row.items():
            parts = name.removeprefix(_SAMPLED + "tools/").split("/")
            if name.startswith(_SAMPLED + "tools/") and len(parts) == 2:
                counts = totals.setdefault(parts[0], {})
                counts[parts[1]] = counts.get(parts[1], 0.0) + value
    for tool, counts in totals.items():
        calls, failures = counts.pop("calls", 0.0), sum(counts.values())
        if len(rows) >= RECENT and calls and failures >= 0.5 * calls:
            reason = max(counts, key=lambda name: counts[name])
            advice = "read some of them in the transcripts (transcripts: true), and see the tool's limits"
            return f"{failures / calls:.0%} of the calls of {tool} failed, mostly: {reason}", advice
    return None


def _mismatch(rows: Sequence[Row], past: Past) -> Finding:
    advice = "let both compute in one precision (engine.dtype, model.autocast_dtype), and see docs/rollout.md"
    truncated = _last(rows, _LEARNED + "truncated")
    if truncated is not None and min(truncated) >= 0.1:
        return f"{truncated[-1]:.0%} of the importance weights are cut: engine and learner disagree", advice
    distances = _last(rows, _LEARNED + "mismatch")
    if distances is not None and min(distances) >= 0.1:
        return f"engine and learner differ by {distances[-1]:.2g} nats a token before the first optimiser step", advice
    return None


def _clipped(rows: Sequence[Row], past: Past) -> Finding:
    low, high = _last(rows, _LEARNED + "clipped_low"), _last(rows, _LEARNED + "clipped_high")
    if low is None or high is None or min(map(sum, zip(low, high, strict=True))) < 0.3:
        return None
    return f"{low[-1] + high[-1]:.0%} of the tokens are clipped: the steps are too large", "lower lr or num_minibatches"


def _skipped_steps(rows: Sequence[Row], past: Past) -> Finding:
    if not (skipped := rows[-1].get(_LEARNED + "num_skipped_steps", 0.0)):
        return None
    return f"{skipped:.0f} optimiser steps were skipped: loss or gradient was not finite", "lower lr or grad_clip"


def _unscored(rows: Sequence[Row], past: Past) -> Finding:
    prefix = _SAMPLED + "reward/failures/"
    failures = sum(value for row in rows[-RECENT:] for name, value in row.items() if name.startswith(prefix))
    episodes = _last(rows, _SAMPLED + "num_episodes")
    if not episodes or not failures or failures < 0.1 * sum(episodes):
        return None
    text = f"the scorer could not judge {failures / sum(episodes):.0%} of the trajectories"
    return text, "see env_config.scorer, and its server"


def _lost_env_runners(rows: Sequence[Row], past: Past) -> Finding:
    """Count the env runners that streamed rollouts lost recently, and all that RLlib counted, evaluation's included."""
    lost = sum(row.get("sampling/env_runners_lost", 0.0) for row in rows[-RECENT:])
    names = ("num_remote_worker_restarts", "num_env_runners_dropped_lifetime", "num_healthy_workers")
    evaluated = next((row for row in reversed(rows) if f"evaluation/{names[0]}" in row), {})  # not in each iteration
    restarts, dropped, left = (
        rows[-1].get(f"fault_tolerance/{name}", 0.0) + evaluated.get(f"evaluation/{name}", 0.0) for name in names
    )
    if not lost + restarts + dropped:
        return None
    so_far = f"so far {restarts:.0f} were restarted and {dropped:.0f} did not answer in time; {left:.0f} are at work"
    return f"env runners were lost, {lost:.0f} of late; {so_far}", "see the log for why; often it is memory"


RULES: Mapping[str, Rule] = {
    "nothing_retrieved": _nothing_retrieved,
    "retrieval_failures": _retrieval_failures,
    "retrieval_harms": _retrieval_harms,
    "held_out_fell": _held_out_fell,
    "unhelped_fell": _unhelped_fell,
    "answers_shown": _answers_shown,
    "answers_copied": _answers_copied,
    "little_covered": _little_covered,
    "no_starts": _no_starts,
    "equal_rewards": _equal_rewards,
    "never_rewarded": _never_rewarded,
    "entropy_collapse": _entropy_collapse,
    "cut_for_length": _cut_for_length,
    "failed_trajectories": _failed_trajectories,
    "wrong_format": _wrong_format,
    "tool_errors": _tool_errors,
    "mismatch": _mismatch,
    "clipped": _clipped,
    "skipped_steps": _skipped_steps,
    "unscored": _unscored,
    "lost_env_runners": _lost_env_runners,
}
ALARMS = ("retrieval_failures", "held_out_fell", "unhelped_fell")  # a training that ends with one is not what was meant
