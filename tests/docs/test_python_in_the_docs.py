"""Python blocks of docs are run, those of pages that have no test of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from local_service import Reply, local_service
from pages import REPOSITORY, blocks

from rapo_rllib import RAPOConfig
from rapo_rllib.corpus.passages import read_passages
from rapo_rllib.tools.function import JsonFunction


def run(page: str, **given: Any) -> None:
    """The last block of ``page``, which has the names ``given``."""
    block = blocks(REPOSITORY / page, "python")[-1]
    exec(compile(block, page, "exec"), {"__name__": "__main__", **given})


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
