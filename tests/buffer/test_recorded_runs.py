"""A run's own trajectories in a text game, recorded, imported, and retrieved in the next run: real MiniLM and Milvus."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from long_game import ROOMS, LongGame
from scripted import ScriptedEngine, scripted_loop

from rapo_rllib.buffer.importing import ImportPlan, import_traces, survey
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.monitoring.transcripts import write_transcripts
from rapo_rllib.types import TrajectoryGroup


def room_in(so_far: str) -> str:
    return so_far.rpartition("You are in the ")[2].partition(".")[0]


def plays(so_far: str) -> str:
    """Looks at the room that the game has named last; what it is shown may end in another."""
    return ROOMS[room_in(re.sub("<retrieve>.*?</retrieve>", "", so_far, flags=re.DOTALL))][1]


def rolled_out(split: str, source: StepTraceBuffer | None = None) -> list[TrajectoryGroup]:
    budgets = {"group_size": 1, "num_hybrid": 1, "max_response_tokens": 20_000, "max_prompt_tokens": 2000}
    loop = scripted_loop(ScriptedEngine(plays), LongGame, source, eos=0, **budgets)
    try:
        return loop.run(list(LongGame.questions({}, split)), retrieval_prob=1.0)
    finally:
        loop.close()


def test_what_a_run_has_recorded_is_retrieved_by_the_next(make_buffer: Callable[..., StepTraceBuffer], tmp_path: Path) -> None:
    groups = rolled_out("train")
    assert all(t.correct and len(t.steps) == 12 for group in groups for t in group.trajectories)
    write_transcripts(str(tmp_path), "iteration_00001.jsonl", groups)
    buffer = make_buffer(key_history_tokens=32)
    plan = ImportPlan((tmp_path / "iteration_00001.jsonl",))
    report = survey(plan)
    assert import_traces(buffer, plan, report).added == sum(report.given.values()) == 12 * 12
    found = right = 0
    for group in rolled_out("test", buffer):
        (trajectory,) = group.trajectories
        for shown in trajectory.retrievals:
            right += shown.text.startswith(ROOMS[room_in(trajectory.steps[shown.after_step].observation)][1])
            found += 1
    assert found == 4 * 11 and right >= 0.9 * found
