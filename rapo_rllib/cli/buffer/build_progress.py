"""Show how far ``rllib buffer build`` is: a bar on a terminal, a line now and then elsewhere, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapo_rllib.cli.build_display import Display, duration

if TYPE_CHECKING:
    from rapo_rllib.agents.build import AgentBuild
    from rapo_rllib.agents.journal import Totals


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
