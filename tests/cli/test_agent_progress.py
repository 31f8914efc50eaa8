"""What ``rllib buffer build`` says about how far it is, and at the end."""

from collections import Counter

import pytest

from rapo_rllib.agents.build import AgentBuild
from rapo_rllib.agents.journal import Totals
from rapo_rllib.cli.buffer.build import build_line, summary_lines

TOTALS = Totals(30, 20, 120, 60, 150, 9000, 42.0, Counter(answer=110, length=8, error=2), Counter({"env.step failed": 2}))


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (AgentBuild(1000, 4, Totals()), "0 of 1,000 questions · 0 attempts · 0 trajectories kept"),
        (
            AgentBuild(100, 4, TOTALS, found=10, attempts=80, tokens=6000, seconds=60.0),
            "30 of 100 questions · 10 were finished before · 80 attempts · 60 trajectories kept · 100 tokens/s · 4 min left",
        ),
        (
            AgentBuild(30, 4, TOTALS, attempts=120, tokens=9000, seconds=60.0),
            "30 of 30 questions · 120 attempts · 60 trajectories kept · 150 tokens/s",
        ),
    ],
)
def test_the_line(state, line):
    assert build_line(state) == line


def test_the_summary():
    assert summary_lines(AgentBuild(32, 4, TOTALS, attempts=120, tokens=9000, seconds=60.0, added=148, unfinished=2)) == [
        "questions: 30 of 32, of which 20 have a trajectory that was kept",
        "trajectories: 120 written, 60 kept, 150 steps; 148 stored now",
        "reward: 0.350 on average over all that were written",
        "ends: 110 answer, 8 length, 2 error",
        "failed 2 times: env.step failed",
        "this run: 120 attempts in 60 s, 150 tokens/s",
        "not finished: 2 questions that the agent failed at; the same command asks them again",
    ]
