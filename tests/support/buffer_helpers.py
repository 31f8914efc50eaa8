"""Expert trajectories with known steps, and watching processes. For the buffer's tests."""

import time
from collections.abc import Callable, Iterator

from rapo_rllib.types import ExpertTrajectory, Question

THINGS = ("apples", "marbles", "stamps", "books", "coins", "shells", "pencils", "cards")


def experts(count: int, reward: float = 1.0) -> Iterator[ExpertTrajectory]:
    """``count`` trajectories of two steps."""
    for i in range(count):
        question = Question(
            f"q{i}", f"Ann has {i} {THINGS[i % 8]} and gets {i + 3} more. How many {THINGS[i % 8]}?", str(2 * i + 3)
        )
        call = f"<think>Add {i} and {i + 3}.</think><python>print({i} + {i + 3})</python>\n<result>\n{2 * i + 3}\n</result>\n"
        yield ExpertTrajectory(question, (call, f"<answer>\\boxed{{{2 * i + 3}}}</answer>"), reward, "solver")


def wait_until(condition: Callable[[], bool], seconds: float = 12.0) -> bool:
    """Poll ``condition``; whether it came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
