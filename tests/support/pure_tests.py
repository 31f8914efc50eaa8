"""``pytest --pure``: the tests that need no Ray, engine, database, model or other process, and a proof that they need none."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import TESTS

# files under tests/; what they mark `process` is left out
PURE = (
    "agents/test_asking.py",
    "agents/test_journal.py",
    "agents/test_selection.py",
    "attention/test_flex.py",
    "benchmarks/test_against_trl_parts.py",
    "batching/test_chunked_logprobs.py",
    "batching/test_prefix_tree.py",
    "cli/test_yaml_text.py",
    "corpus/test_passages.py",
    "docs/test_links.py",
    "endpoint/test_conversation.py",
    "envs/test_benchmarks.py",
    "envs/test_calculator_traces.py",
    "envs/test_cursor.py",
    "envs/test_questions.py",
    "envs/test_word_problems.py",
    "evaluation/test_evaluation_metrics.py",
    "objective/test_advantages.py",
    "objective/test_aggregation.py",
    "objective/test_branch_equations.py",
    "objective/test_clipped_objective.py",
    "objective/test_entropy.py",
    "objective/test_importance.py",
    "objective/test_loss.py",
    "objective/test_loss_parts.py",
    "objective/test_overlong_and_shaping.py",
    "objective/test_retrieval_reward.py",
    "objective/test_sequence_ratio.py",
    "package/test_requirements.py",
    "protocol/test_expert_tokens.py",
    "protocol/test_steps.py",
    "report/test_report_page.py",
    "report/test_report_trajectories.py",
    "rewards/test_qa.py",
    "rewards/test_terms.py",
    "weights/test_canary.py",
    "checkpoints/test_checkpoint_folder.py",
    "env_runner/test_dispatch.py",
    "rollout/test_retrieval_failures.py",
    "rollout/test_retriever.py",
    "env_runner/test_rollout_metrics.py",
    "rollout/test_branching.py",
    "rollout/test_off_policy_mixing.py",
    "rollout/test_seeds_and_budgets.py",
    "test_budgets.py",
    "test_layers.py",
    "test_suite.py",
    "traces/test_trace_files.py",
    "weights/test_weights.py",
    "tools/test_bounded.py",
    "tools/test_make_tool.py",
    "traces/test_formats.py",
    "web_search/test_observation.py",
    "web_search/test_providers.py",
)
HEAVY = ("ray", "vllm", "pymilvus", "milvus_lite", "sentence_transformers")
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
started: list[str] = []  # by the current test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="only the tests that need no Ray, engine, database, model or process")


def pytest_configure(config: pytest.Config) -> None:
    """An audit hook cannot be taken away again, so it is only there where it is wanted."""
    if config.getoption("pure"):
        sys.addaudithook(note_start)


def note_start(event: str, args: tuple[Any, ...]) -> None:
    if event in STARTS:
        started.append(f"{event} {args[0] if args else ''}".strip())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files are not even imported: what some import at their head takes seconds."""
    if not config.getoption("pure") or not fnmatch.fnmatch(collection_path.name, "test_*.py"):
        return None
    return True if collection_path.relative_to(TESTS).as_posix() not in PURE else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("pure"):
        return
    if loaded := [name for name in HEAVY if name in sys.modules]:
        raise pytest.UsageError(f"a file that tests/support/pure_tests.py lists imports {loaded}")
    left_out = [item for item in items if item.get_closest_marker("process") or item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def stays_pure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that loads what the list excludes, or starts a process."""
    before = {name for name in HEAVY if name in sys.modules}
    started.clear()
    yield
    if request.config.getoption("pure"):
        loaded = {name for name in HEAVY if name in sys.modules} - before
        assert not loaded, f"loads {loaded}: take its file off the list in tests/support/pure_tests.py"
        assert not started, f"starts {started}: mark it `process`"
