"""What Ray would import for its usage statistics."""

import pytest

from rapo_rllib.cli.train.run import only_if_reported


@pytest.mark.parametrize(("enabled", "notes"), [("0", False), ("1", True)])
def test_loggers_are_noted_where_the_statistics_are_on(monkeypatch: pytest.MonkeyPatch, enabled: str, notes: bool) -> None:
    from ray.air._internal import usage

    called: list[object] = []
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", enabled)
    monkeypatch.setattr(usage, "_count_callbacks", lambda callbacks: called.append(callbacks))
    with only_if_reported():
        usage.tag_callbacks(["logger"])  # type: ignore[list-item]
    assert bool(called) == notes
    usage.tag_callbacks(["after"])  # type: ignore[list-item]
    assert called[-1] == ["after"]
