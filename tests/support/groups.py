"""Which tests one process runs, where there are several, and which of them begin."""

from __future__ import annotations

import pytest

# whole jobs of more than 6 GB: one at a time
LARGE = {f"tests/e2e/test_{name}.py" for name in ("main_job", "scaling", "killed_env_runner")}
# the groups that take longest, in this order; one of them must not be left for the end
LONGEST = (
    "large",
    "milvus",
    "tests/rollout/test_vllm_engine.py",
    "tests/e2e/test_examples_train.py",
    "tests/e2e/test_kill_and_resume.py",
    "tests/rollout/test_engine_processes.py",
    "tests/e2e/test_population.py",
    "tests/cli/test_train_file.py",
    "tests/e2e/test_lora_job.py",
    "tests/learner/test_training_state.py",
    "tests/cli/test_resume_command.py",
    "tests/e2e/test_python_page.py",
    "tests/e2e/test_restored_run.py",
    "tests/e2e/test_own_environment.py",
    "tests/e2e/test_search_job.py",
    "tests/learner/test_learners_together.py",
    "tests/learner/test_fsdp.py",
    "tests/milvus/test_lite_handle.py",
    "tests/e2e/test_streamed_run.py",
    "tests/milvus/test_kill_lite.py",
    "tests/buffer/test_build.py",
    "tests/rewards/test_maths.py",
    "tests/e2e/test_evaluate_engine.py",
    "tests/e2e/test_buffer_build_engine.py",
    "tests/tools/test_mcp_shared.py",
    "tests/cli/test_buffer_build.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process runs whole groups; the longest begin."""
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: LONGEST.index(groups[item]) if groups[item] in LONGEST else len(LONGEST))


def group_of(item: pytest.Item) -> str:
    """Those that use the Milvus server, which starts once; the large jobs; what a mark groups; else those of a file."""
    if item.get_closest_marker("milvus"):
        return "milvus"
    if (named := item.get_closest_marker("xdist_group")) is not None:
        return str(named.args[0])
    file = item.location[0]
    return "large" if file in LARGE else file


@pytest.fixture(scope="session", autouse=True)
def groups_are_kept(request: pytest.FixtureRequest) -> None:
    """A pytest that pytest-xdist does not know would run two whole jobs at once, without a word."""
    if request.config.getoption("dist", "no") == "loadgroup":
        assert all("@" in item.nodeid for item in request.session.items), "pytest-xdist does not group: see pyproject.toml"
