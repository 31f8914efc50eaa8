"""Every Python block of README and docs is run, or checked: here, or by the test that is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from local_service import Reply, local_service
from pages import REPOSITORY, blocks, every, is_a_test

from rapo_rllib import RAPOConfig
from rapo_rllib.corpus.passages import read_passages
from rapo_rllib.tools.make import JsonFunction

HERE = {"docs/algorithm.md", "docs/security.md"}
ELSEWHERE = {
    "docs/agents.md": "endpoint/test_agents.py::test_the_agent_of_the_page",
    "README.md": "docs/test_readme.py::test_its_program_is_a_part_of_the_one_that_a_test_trains",
    # also a program of TRL, for GPUs: its names
    "docs/from_verl_or_trl.md": "docs/test_from_verl_or_trl.py::test_rewards_and_objects_of_trl",
    "docs/jobs.md": "e2e/test_python_page.py::test_the_program_of_the_python_page_trains",
    "docs/rewards.md": "rewards/test_own.py::test_the_example_of_the_page_about_rewards",
    "docs/tools.md": "tools/test_tools_in_the_docs.py::test_they_run",
}


def run(page: str, **given: Any) -> None:
    """The last block of ``page``, which has the names ``given``."""
    block = blocks(REPOSITORY / page, "python")[-1]
    exec(compile(block, page, "exec"), {"__name__": "__main__", **given})


def test_every_page_has_a_test() -> None:
    assert {page for page, _ in every("python")} == HERE | set(ELSEWHERE)
    assert [test for test in ELSEWHERE.values() if not is_a_test(test)] == []


def test_ablations() -> None:
    configs: list[RAPOConfig] = []

    class Kept(RAPOConfig):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            configs.append(self)

    run("docs/algorithm.md", RAPOConfig=Kept)
    released, without_rr = configs
    for config in configs:
        config.training(model={"name_or_path": "smollm2-135m-instruct"}).validate()
    assert (released.group_size, released.num_hybrid, released.preset) == (8, 3, "released_code")
    assert without_rr.retrieval_advantage_weight == 0


def test_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HotpotQA is not on every machine: two rows of its form."""
    import datasets

    def hotpotqa(name: str, config: str, split: str) -> Sequence[dict[str, Any]]:
        assert (name, config, split) == ("hotpotqa/hotpot_qa", "distractor", "train+validation")
        return datasets.Dataset.from_list(
            [
                {"context": {"title": ["Faust", "Hamlet"], "sentences": [["A play.", " By Goethe."], ["Another."]]}},
                {"context": {"title": ["Dune"], "sentences": [["A novel."]]}},
            ]
        )

    monkeypatch.setattr(datasets, "load_dataset", hotpotqa)
    monkeypatch.chdir(tmp_path)
    run("docs/tools.md")
    found = [(passage.title, passage.text) for passage in read_passages("passages.jsonl")]
    assert found == [("Faust", "A play. By Goethe."), ("Hamlet", "Another."), ("Dune", "A novel.")]


def test_code_in_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    (block,) = blocks(REPOSITORY / "docs/security.md", "python")
    exec(compile(block, "docs/security.md", "exec"), names)
    tool = JsonFunction(names["run_code"], "run_code")
    with local_service(lambda request: Reply({"run_result": {"stdout": "42\n", "stderr": ""}})) as service:
        monkeypatch.setenv("SANDBOX_URL", service.url)
        assert tool.run('{"code": "print(6 * 7)"}').text == "42\n"
    (request,) = service.requests
    assert request.path == "/run_code" and request.json == {"code": "print(6 * 7)", "language": "python", "run_timeout": 5}
