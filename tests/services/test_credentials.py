"""Tokens and passwords are never part of a job: what is given by mistake is refused, and not repeated."""

from pathlib import Path

import pytest

from rapo_rllib.agents.endpoint import EndpointOptions
from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import check_experiment
from rapo_rllib.cli.train.experiments import read_experiments
from rapo_rllib.cli.train.loggers import made_loggers
from rapo_rllib.corpus.search_tool import CorpusSearch
from rapo_rllib.embedding.endpoint import split_endpoint
from rapo_rllib.milvus import connection
from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.rewards.judge import JudgeOptions
from rapo_rllib.settings import BufferSettings

SECRET = "pa55-w0rd"
URL = f"http://me:{SECRET}@somewhere.org:19530/v1"
BUFFER = {"uri": "http://somewhere.org:19530", "token": SECRET}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RAPOConfig().training(step_trace_buffer=BUFFER), "MILVUS_TOKEN on every machine"),
        (lambda: RAPOConfig().update_from_dict({"step_trace_buffer": BUFFER}), "MILVUS_TOKEN on every machine"),
        (lambda: StepTraceBuffer(BufferSettings(uri=URL)), r"step_trace_buffer\.uri .*variable MILVUS_TOKEN"),
        (lambda: StepTraceBuffer(BufferSettings(uri=URL.upper())), r"step_trace_buffer\.uri .*variable MILVUS_TOKEN"),
        (lambda: CorpusSearch(URL), r"search option uri .*variable MILVUS_TOKEN"),
        (lambda: made_loggers([{"type": "mlflow", "tracking_uri": URL}]), "tracking_uri .*MLFLOW_TRACKING_PASSWORD"),
        (lambda: split_endpoint(f"{URL}#model", "embedder"), "embedder .*variable EMBEDDER_API_KEY"),
        (lambda: JudgeOptions(base_url=URL, model="m"), r"options\.base_url .*variable that api_key_env names"),
        (lambda: JudgeOptions(base_url="http://a.org", model="m", api_key_env=SECRET), r"options\.api_key_env is no name"),
        (
            lambda: JudgeOptions("http://a.org", "m", extra={"api_key": SECRET}),
            r"options\.extra\.api_key .*that api_key_env names",
        ),
        (
            lambda: JudgeOptions("http://a.org", "m", extra={"h": {"Authorization": SECRET}}),
            r"options\.extra\.h\.Authorization ",
        ),
        (lambda: made_loggers([{"type": "wandb", "project": "p", "api_key": SECRET}]), "wandb.api_key .*set WANDB_API_KEY"),
        (
            lambda: RAPOConfig().environment("rapo/word_problems").training(engine={"extra": {"hf_token": SECRET}}).validate(),
            r"engine\.extra\.hf_token .*set HF_TOKEN",
        ),
        (lambda: EndpointOptions(URL, "m"), "the agent.*variable that --agent-key-env names"),
        (lambda: EndpointOptions("http://a.org", "m", key_variable=SECRET), "--agent-key-env is no name.*set AGENT_API_KEY"),
    ],
)
def test_a_secret_in_a_job_is_refused_and_not_repeated(make, message: str) -> None:
    with pytest.raises(ValueError, match=message) as told:
        make()
    assert SECRET not in str(told.value).lower()


def test_what_is_no_secret_is_handed_on() -> None:
    extra = {"max_tokens": 9, "eos_token": "</s>", "stop_token_ids": [1], "token": "", "chat": {"tokenizer": "x", "top_k": 3}}
    assert JudgeOptions("http://a.org", "m", extra=extra).extra == extra
    RAPOConfig().environment("rapo/word_problems").training(engine={"extra": {"hf_token": True, "tokenizer": "x"}}).validate()


def test_a_job_with_a_token_does_not_begin(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    where = f"{{uri: http://127.0.0.1:9, token: {SECRET}}}"
    job.write_text(
        f"j: {{run: RAPO, env: rapo/word_problems, stop: {{training_iteration: 1}}, config: {{step_trace_buffer: {where}}}}}"
    )
    with pytest.raises(ValueError, match=r"step_trace_buffer\.token ") as told:
        for spec in read_experiments(job, RunOptions()):
            check_experiment(spec)
    assert SECRET not in str(told.value)


def test_the_token_is_read_where_it_is_used_and_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(connection, "_new_client", lambda *arguments: given.append(arguments) or object())
    for token in ("", "first", "second"):
        monkeypatch.setenv("MILVUS_TOKEN", token)
        handle = MilvusHandle("http://a.org:1", uri_key="uri")
        handle.client()
        assert token == "" or token not in str(vars(handle))
    assert [arguments[1] for arguments in given] == ["", "first", "second"]
