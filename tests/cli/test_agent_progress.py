"""How far an agent is, as commands say it."""

import pytest

from rapo_rllib.agents.asking import Progress
from rapo_rllib.cli.build_display import attempts_line


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress(4000), "0 of 4,000 attempts"),
        (
            Progress(400, found=40, ended=80, failed=3, tokens=6000),
            "120 of 400 attempts · 40 were there before · 3 failed · 100 tokens/s · 4 min left",
        ),
        (Progress(120, ended=120, tokens=9000), "120 of 120 attempts · 150 tokens/s"),
    ],
)
def test_the_line(progress: Progress, line: str) -> None:
    assert attempts_line(progress, 60.0) == line
