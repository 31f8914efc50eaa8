"""docs/metrics.md has every metric that is logged, and none that is not."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
import torch
from pages import REPOSITORY, metrics_on_the_page

from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics, staleness_metrics
from rapo_rllib.learner.metrics import UpdateMetrics
from rapo_rllib.learner.ranks import Ranks
from rapo_rllib.weights.sync import SyncReport, sync_metrics

PAGE = metrics_on_the_page()
VARIABLE = re.compile(r"(reward|ends|deadlines|tools|right_of)/[A-Z]+")  # a name for many
SOURCES = {
    "env_runners/": lambda: rollout_metrics(SampleResult()),
    "learners/default_policy/": lambda: UpdateMetrics().reduced(Ranks(torch.device("cpu"), False), 1.0),
    "sync/": lambda: sync_metrics(SyncReport(*(0 for _ in fields(SyncReport)))) | staleness_metrics([], 0),
}


@pytest.mark.parametrize("prefix", SOURCES)
def test_all_that_is_logged_has_a_row(prefix: str) -> None:
    text = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    logged = {f"{prefix}{name}" for name in SOURCES[prefix]()}
    assert len(logged) > 10
    unsaid = {name for name in logged - PAGE if not (name.endswith("_count") and f"`{name.rsplit('/', 1)[1]}`" in text)}
    assert unsaid == set()


def test_all_rows_are_of_names_in_the_code() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in (REPOSITORY / "rapo_rllib").rglob("*.py"))
    rllib = {
        "num_env_steps_sampled",
        "num_episodes",
        "default_optimizer_learning_rate",
        "evaluation_iteration",
        "weights_seq_no",
    }
    rllib |= {"num_env_steps_sampled_lifetime", "num_episodes_lifetime"}
    for name in PAGE:
        last = name.rsplit("/", 1)[1]
        if VARIABLE.search(name) or last == "…" or last in rllib or "REASON" in name:
            continue
        assert re.search(rf"\b{last}(_sum)?\b", code), name
