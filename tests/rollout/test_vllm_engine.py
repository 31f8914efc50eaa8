"""vLLM's numbers against a Hugging Face forward pass over the same tokens, and its weights against those it was sent.

The first layers of SmolLM2 are the model, a third of its cost; what only the whole one understands is slow.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rapo_rllib.agents.agent import attempt_of
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import EngineError, WeightSyncError
from rapo_rllib.monitoring.transcripts import write_transcripts
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.expert_tokens import expert_tokens
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import EngineSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import ExpertTrajectory, Question

PROMPTS = ("Tom has 3 apples and buys 5 more. How many", "def fibonacci(n):\n", "<python>3 + 5</python>\n<result>")

ALL = None
STEP_TOKENS = 512  # that one step of the engine computes at most, of all its requests


NUM_LAYERS = 3


@pytest.fixture(scope="module", params=[NUM_LAYERS], ids="{} layers".format)
def folder(request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the model: SmolLM2's first layers, or all of them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if request.param is ALL:
        return smollm2
    cut = tmp_path_factory.mktemp("first_layers")
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, num_hidden_layers=request.param)
    model.save_pretrained(cut)
    AutoTokenizer.from_pretrained(smollm2).save_pretrained(cut)
    return cut


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Any]:
    from rapo_rllib.rollout.vllm.engine import VLLMEngine

    options = {"dtype": "float32", "max_num_seqs": 8, "enforce_eager": True, "kv_cache_gib": 0.2}
    settings = EngineSettings(**options, extra={"max_num_batched_tokens": STEP_TOKENS})
    engine = VLLMEngine(str(folder), settings, max_model_len=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def generate(engine: Any, prompts: list[list[int]], **options: Any) -> list[Completion]:
    """Continue every prompt; completions in the order of the prompts."""
    for index, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(f"test-{index}", prompt, **{"max_tokens": 20, **options}))
    done = finish(engine)
    return [done[f"test-{index}"] for index in range(len(prompts))]


def finish(engine: Any) -> dict[str, Completion]:
    """Completions of all that runs, by request."""
    done: dict[str, Completion] = {}
    while engine.num_unfinished:
        done |= {completion.request_id: completion for completion in engine.poll()}
    return done


@torch.no_grad()
def scored(model: Any, prompt: list[int], response: list[int], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies ``[N]`` of the response under ``softmax(logits / temperature)``."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double() / temperature
    log_p = torch.log_softmax(logits, -1)
    return log_p.gather(-1, torch.tensor(response)[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.4])
def test_logprobs_and_entropies_equal_a_forward_pass(engine: Any, model: Any, tokenizer: Any, temperature: float) -> None:
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    for prompt, completion in zip(prompts, generate(engine, prompts, temperature=temperature), strict=True):
        logprobs, entropies = scored(model, prompt, list(completion.token_ids), temperature)
        assert len(completion.token_ids) > 0
        assert torch.tensor(completion.logprobs).double() == pytest.approx(logprobs, abs=2e-3)
        assert torch.tensor(completion.entropies).double() == pytest.approx(entropies, abs=2e-3)


def test_entropies_of_the_likeliest_tokens_beside_full_ones_in_one_batch(engine: Any, model: Any, tokenizer: Any) -> None:
    prompt = tokenizer.encode(PROMPTS[0])
    for top_k in (None, 10, 1):
        engine.submit(GenerationRequest(f"top-{top_k}", prompt, max_tokens=8, temperature=0.8, entropy_top_k=top_k))
    done = finish(engine)
    for top_k in (None, 10, 1):
        completion = done[f"top-{top_k}"]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1].double() / 0.8
        p = torch.softmax(logits, -1).sort(dim=-1, descending=True).values[:, :top_k]
        assert torch.tensor(completion.entropies).double() == pytest.approx(-(p * p.log()).sum(-1), abs=2e-3)
        logprobs, _ = scored(model, prompt, list(completion.token_ids), 0.8)
        assert torch.tensor(completion.logprobs).double() == pytest.approx(logprobs, abs=2e-3)


def test_greedy_tokens_are_the_argmax(engine: Any, model: Any, tokenizer: Any) -> None:
    prompt = tokenizer.encode(PROMPTS[0])
    (completion,) = generate(engine, [prompt], temperature=0.0)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
    assert list(completion.token_ids) == expected.tolist()
    assert completion.entropies == [0.0] * len(completion.token_ids)


def test_greedy_and_sampled_requests_of_several_temperatures_in_one_batch(engine: Any, model: Any, tokenizer: Any) -> None:
    """The greedy one has no entropies and the logprobs of temperature 1; it comes and goes between the others."""
    prompt = tokenizer.encode(PROMPTS[1])
    lengths = {0.6: 20, 0.0: 9, 1.3: 14}
    for temperature, length in lengths.items():
        engine.submit(GenerationRequest(f"mixed-{temperature}", prompt, max_tokens=length, temperature=temperature))
    done = finish(engine)
    for temperature, length in lengths.items():
        completion = done[f"mixed-{temperature}"]
        logprobs, entropies = scored(model, prompt, list(completion.token_ids), temperature or 1.0)
        assert 0 < len(completion.token_ids) <= length
        assert torch.tensor(completion.logprobs).double() == pytest.approx(logprobs, abs=2e-3)
        assert torch.tensor(completion.entropies).double() == pytest.approx(entropies * bool(temperature), abs=2e-3)


def pieces(tokenizer: Any, token_ids: list[int]) -> list[str]:
    return [tokenizer.decode([token], skip_special_tokens=True) for token in token_ids]


@dataclass(frozen=True)
class Start:
    """How a prompt is continued, and the place of a token there that makes a stop string."""

    prompt: list[int]
    options: dict[str, Any]
    free: Completion  # without one
    words: list[str]
    place: int

    @property
    def stop(self) -> tuple[str, str]:
        """The stop string, and the text before it."""
        return self.words[self.place], "".join(self.words[: self.place])


def start_of(engine: Any, tokenizer: Any, temperature: float) -> Start:
    """Three layers say almost anything, another thing with another processor: the first continuation that is clear.

    Up to the token behind the stop string it is ASCII, without special tokens, and neither of both was there before.
    """
    tried = []
    for number in range(20):
        prompt = tokenizer.encode(PROMPTS[number % len(PROMPTS)] + " and" * number)
        options = {"temperature": temperature, "seed": number if temperature else None}
        (free,) = generate(engine, [prompt], **options)
        words = pieces(tokenizer, list(free.token_ids))
        for place in range(2, len(words) - 2):
            start, tokens = Start(prompt, options, free, words, place), free.token_ids
            (word, before), said = start.stop, words[: place + 2]
            clear = all(piece and piece.isascii() for piece in said) and len(word.strip()) > 2
            alone = tokens[place + 1] not in [*prompt, *tokens[: place + 1]] and (before + word).index(word[:-1]) == len(before)
            if clear and alone and tokenizer.decode(tokens[: place + 2]) == "".join(said):
                return start
        tried.append("".join(words))
    pytest.fail(f"no token of these makes a stop string: {tried}")


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_one_token_more_behind_the_last_stop_string(engine: Any, model: Any, tokenizer: Any, temperature: float) -> None:
    """Whole tokens, tokens that the tag ends within, other stop strings, and budgets that leave no token more, in one batch."""
    start = start_of(engine, tokenizer, temperature)
    prompt, free, words, place, (word, before) = start.prompt, start.free, start.words, start.place, start.stop
    logprobs, entropies = scored(model, prompt, list(free.token_ids), temperature or 1.0)
    cases = {  # stop string, max_tokens -> tokens, text, spill
        "whole": ((word,), word, 20, place + 2, before + word, words[place + 1]),
        "within": ((word[:-1],), word[:-1], 20, place + 2, before + word[:-1], word[-1] + words[place + 1]),
        "other": ((word, "§"), "§", 20, place + 1, before + word, ""),
        "not final": ((word[:-1],), None, 20, place + 1, before + word[:-1], word[-1]),
        "none left": ((word,), word, place + 1, place + 1, before + word, ""),
        "last left": ((word,), word, place + 2, place + 2, before + word, words[place + 1]),
    }
    for name, (stop, final, max_tokens, *_) in cases.items():
        engine.submit(GenerationRequest(name, prompt, max_tokens, stop, final, **start.options))
    done = finish(engine)
    for name, (*_, length, text, spill) in cases.items():
        completion = done[name]
        assert list(completion.token_ids) == list(free.token_ids[:length]), name
        assert (completion.text, completion.spill, completion.finish) == (text, spill, "stop"), name
        assert torch.tensor(completion.logprobs).double() == pytest.approx(logprobs[:length], abs=2e-3)
        assert torch.tensor(completion.entropies).double() == pytest.approx(entropies[:length] * bool(temperature), abs=2e-3)
    assert not recorder_of(engine)._values._records and not engine._engine.output_processor.request_states


def test_a_token_that_ends_a_turn_under_any_name(engine: Any, tokenizer: Any) -> None:
    start = start_of(engine, tokenizer, 0.0)
    expected = start.free.token_ids[: start.place + 1]
    (ended,) = generate(engine, [start.prompt], temperature=0.0, end_ids=(expected[-1],))
    assert (ended.token_ids, ended.finish) == (expected, "eos")
    assert ended.text == tokenizer.decode(ended.token_ids)


def test_eos_in_the_place_of_the_token_behind_the_last_stop_string_is_no_text(engine: Any, model: Any, tokenizer: Any) -> None:
    """Both tokens change places in the embedding, which is the head, too: the model goes on as it did, and says EOS there."""
    start = start_of(engine, tokenizer, 0.0)
    (word, before), eos = start.stop, tokenizer.eos_token_id
    tokens = start.free.token_ids[: start.place + 2]
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}  # tied weights come once
    weights["model.embed_tokens.weight"][[eos, tokens[-1]]] = weights["model.embed_tokens.weight"][[tokens[-1], eos]]
    try:
        engine.weights.load(weights, version=50)
        (ended,) = generate(engine, [start.prompt], temperature=0.0, stop=(word,), final_stop=word)
        (alone,) = generate(engine, [start.prompt], temperature=0.0)
    finally:
        engine.weights.load(model.state_dict(), version=51)
    assert list(ended.token_ids) == list(alone.token_ids) == [*tokens[:-1], eos]
    assert (ended.text, ended.spill, ended.finish) == (before + word, "", "stop")
    assert (alone.text, alone.spill, alone.finish) == (before + word, "", "eos")


WHOLE = pytest.mark.parametrize("folder", [ALL], ids=["all layers"], indirect=True)


def recorder_of(engine: Any) -> Any:
    """The recorder inside the engine's only worker, which runs in this process."""
    return engine._engine.collective_rpc(lambda worker: worker._recorder)[0]


def test_an_aborted_request_leaves_nothing_behind(engine: Any, tokenizer: Any) -> None:
    recorder = recorder_of(engine)
    for name in ("kept", "aborted"):
        engine.submit(GenerationRequest(name, tokenizer.encode(PROMPTS[0]), max_tokens=8))
    for _ in range(4):
        assert engine.poll() == []
    assert recorder._values._steps
    engine.abort(["aborted"])
    assert not recorder._values._steps and set(recorder._values._records) == {"kept"}
    assert set(finish(engine)) == {"kept"}
    assert not recorder._values._steps and not recorder._values._records


def test_a_token_without_a_record_is_an_error(engine: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recorder_of(engine)
    take = recorder.take
    monkeypatch.setattr(
        recorder, "take", lambda keys, lengths: [{p: v for p, v in r.items() if p != 2} for r in take(keys, lengths)]
    )
    with pytest.raises(EngineError, match="no entropy and logprob of token 2 of 4 of request test-0 was recorded"):
        generate(engine, [tokenizer.encode(PROMPTS[0])], max_tokens=4)


def test_length_is_named(engine: Any, tokenizer: Any) -> None:
    (completion,) = generate(engine, [tokenizer.encode("Once upon a time")], max_tokens=3)
    assert completion.finish == "length"
    assert len(completion.token_ids) == 3


def test_scores_equal_a_forward_pass(engine: Any, model: Any, tokenizer: Any) -> None:
    sequences = [tokenizer.encode(prompt) for prompt in PROMPTS]
    for sequence, score in zip(sequences, engine.score(sequences), strict=True):
        expected, _ = scored(model, sequence[:1], sequence[1:], 1.0)
        assert score == pytest.approx(expected.tolist(), abs=2e-3)


def test_an_incomplete_set_of_weights_is_refused(engine: Any, model: Any) -> None:
    weights = {name: value for name, value in model.state_dict().items() if "layers.1." not in name}
    with pytest.raises(WeightSyncError, match=r"parameters of the engine received nothing"):
        engine.weights.load(weights, version=1)
    engine.weights.load(model.state_dict(), version=2)
    assert engine.policy_version == 2


def test_a_tied_head_follows_the_embedding_even_if_only_that_is_sent(engine: Any, model: Any, tokenizer: Any) -> None:
    sequence = tokenizer.encode(PROMPTS[0])
    before = engine.score([sequence])[0]
    weights = {name: value.clone() for name, value in model.named_parameters()}  # tied weights come once
    weights["model.embed_tokens.weight"] *= 0.9
    engine.weights.load(weights, version=3)
    moved = copy.deepcopy(model)
    moved.load_state_dict(weights, strict=False)
    expected, _ = scored(moved, sequence[:1], sequence[1:], 1.0)
    assert engine.score([sequence])[0] == pytest.approx(expected.tolist(), abs=2e-3)
    assert before != pytest.approx(expected.tolist(), abs=2e-2)
    engine.weights.load(model.state_dict(), version=4)


def test_weights_follow_an_engine_that_slept(engine: Any, model: Any, tokenizer: Any) -> None:
    """On a CPU vLLM's workers ignore the sleep; its executor keeps account of what is asleep, as on a GPU."""
    sequence = tokenizer.encode(PROMPTS[0])
    executor = engine._engine.engine_core.engine_core.model_executor
    for _ in range(2):
        engine.weights.sleep()
        assert executor.sleeping_tags == {"weights", "kv_cache"}
        engine.weights.wake()
        assert executor.sleeping_tags == {"kv_cache"}  # the learner beside it needs the room while weights are on their way
        engine.weights.load(model.state_dict(), version=5)
        assert not executor.is_sleeping
        expected, _ = scored(model, sequence[:1], sequence[1:], 1.0)
        assert engine.score([sequence])[0] == pytest.approx(expected.tolist(), abs=2e-3)


def test_a_seeded_request_samples_the_same_whatever_runs_beside_it(engine: Any, tokenizer: Any) -> None:
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    alone = [list(generate(engine, [prompt], seed=11)[0].token_ids) for prompt in prompts]
    together = [list(completion.token_ids) for completion in generate(engine, prompts * 2, seed=11)]
    assert together == alone * 2
    assert [list(c.token_ids) for c in generate(engine, prompts, seed=12)] != alone
    assert all(len(set(tokens)) > 3 for tokens in alone)


def test_seeded_requests_survive_a_prompt_that_is_prefilled_in_parts(engine: Any, tokenizer: Any) -> None:
    """More prompt tokens than one step of the engine takes: some rows are computed in part, their token discarded."""
    prompts = [tokenizer.encode(f"{index} " * 100)[:200] for index in range(3)]
    assert sum(map(len, prompts)) > STEP_TOKENS == engine._engine.vllm_config.scheduler_config.max_num_batched_tokens
    together = [list(completion.token_ids) for completion in generate(engine, prompts, seed=5, max_tokens=6)]
    alone = [list(generate(engine, [prompt], seed=5, max_tokens=6)[0].token_ids) for prompt in prompts]
    assert together == alone


def test_what_the_prefix_cache_held_is_told(engine: Any, tokenizer: Any) -> None:
    prompt = tokenizer.encode("one two three four five six seven eight nine ten " * 8)
    first, second = (generate(engine, [prompt], max_tokens=2)[0].cached_tokens for _ in range(2))
    assert first == 0 and 0 < second < len(prompt)


@pytest.fixture
def adapters(engine: Any, model: Any) -> Iterator[Any]:
    """Adapters of a copy of the model, far from zero; the engine expects such in place of weights until the test is over."""
    from rapo_rllib.learner.adapters import Adapters
    from rapo_rllib.settings import LoraSettings

    settings = LoraSettings(rank=8)
    adapted = Adapters(copy.deepcopy(model), settings)
    for tensor in adapted.tensors().values():
        torch.nn.init.normal_(tensor, std=0.05)
    engine._engine.collective_rpc("merge_adapters", args=(settings.scaling, "float32"))
    yield adapted
    engine._engine.collective_rpc(lambda worker: worker.worker.__dict__.pop("_merge"))
    engine.weights.load(model.state_dict(), version=30)


def test_adapters_are_merged_into_the_weights_on_disk(engine: Any, model: Any, tokenizer: Any, adapters: Any) -> None:
    """Twice in a row, as base weights that were changed in place would show; and no cached prefix survives."""
    prompt = tokenizer.encode("one two three four five six seven eight nine ten " * 5)
    generate(engine, [prompt], max_tokens=2)
    for version in (20, 21):
        with torch.no_grad():
            for tensor in adapters.tensors().values():
                tensor += 0.01
        engine.weights.load(adapters.tensors(), version)
        (first,), (second,) = (generate(engine, [prompt], temperature=0.7, seed=3) for _ in range(2))
        assert (first.cached_tokens, second.policy_version) == (0, version) and second.cached_tokens > 0
        for completion in (first, second):
            logprobs, entropies = scored(adapters._model, prompt, list(completion.token_ids), 0.7)
            assert torch.tensor(completion.logprobs).double() == pytest.approx(logprobs, abs=2e-3)
            assert torch.tensor(completion.entropies).double() == pytest.approx(entropies, abs=2e-3)
        base, _ = scored(model, prompt, list(first.token_ids), 0.7)
        assert float((torch.tensor(first.logprobs) - base).abs().mean()) > 0.1


def test_an_adapter_for_no_weight_on_disk_is_refused(engine: Any, adapters: Any) -> None:
    renamed = {name.replace("q_proj", "query"): tensor for name, tensor in adapters.tensors().items()}
    with pytest.raises(WeightSyncError, match=rf"{NUM_LAYERS} adapters belong to no weight of the model on disk"):
        engine.weights.load(renamed, version=22)


def make_loop(engine: Any, tokenizer: Any, protocol: ProtocolSettings | None = None, **settings: Any) -> RolloutLoop:
    chat = ChatProtocol(tokenizer, protocol or ProtocolSettings(system_prompt=""), ("python",))
    defaults = {"group_size": 2, "num_hybrid": 0, "max_response_tokens": 48, "step_timeout_s": 60.0}
    return RolloutLoop(engine, chat, EnvPool(ToolEnv, "answer"), RolloutSettings(**{**defaults, **settings}))


@pytest.mark.slow  # in short: test_ends.py
@WHOLE
@pytest.mark.parametrize("greedy", [True, False])
def test_answered_trajectories_of_a_real_model_end_with_eos_as_an_experts_do(engine: Any, tokenizer: Any, greedy: bool) -> None:
    shown = "<answer>\\boxed{2}</answer>"
    protocol = ProtocolSettings(system_prompt="", examples=(("1 + 1?", shown),) * 3)
    loop = make_loop(engine, tokenizer, protocol, temperature=0.05, max_prompt_tokens=200)
    question = Question("q", "1 + 1?", "2")
    (group,) = loop.run([question], greedy=greedy)
    expert = expert_tokens(ExpertTrajectory(question, (shown,), 1.0, "x"), group.trajectories[0].prompt_ids, loop.chat)
    for trajectory in group.trajectories:
        assert (trajectory.end, trajectory.turn_ended, trajectory.correct) == ("answer", True, True)
        assert trajectory.text == trajectory.steps[-1].text == shown
        assert trajectory.token_ids == expert.token_ids and trajectory.token_ids[-1] == tokenizer.eos_token_id
        assert attempt_of(trajectory, protocol).steps == (shown,)
        if greedy:  # whose logprobs are those at temperature 1
            (scores,) = engine.score([[*trajectory.prompt_ids, *trajectory.token_ids]])
            assert scores[-len(trajectory.token_ids) :] == pytest.approx(trajectory.logprobs, abs=2e-3)
    loop.close()


def test_a_prompt_over_the_models_length_costs_its_trajectories(engine: Any, tokenizer: Any) -> None:
    """``max_prompt_tokens`` would let it pass; the engine, whose ``max_model_len`` is 256, refuses it."""
    loop = make_loop(engine, tokenizer, max_prompt_tokens=4096)
    long = Question("long", "What is " + "1 + " * 300 + "1?", "301")
    groups = loop.run([long, Question("short", "What is 1 + 1?", "2")])
    assert [trajectory.end == "error" for group in groups for trajectory in group.trajectories] == [True, True, False, False]
    assert "maximum context length is 256 tokens" in groups[0].trajectories[0].error
    assert loop.stats.ends["error"] == 2
    assert engine.num_unfinished == 0
    loop.close()


@pytest.fixture
def noise(engine: Any, model: Any) -> Iterator[Any]:
    """The engine with weights that make all tokens equally likely."""
    weights = model.state_dict()
    engine.weights.load({**weights, "model.norm.weight": torch.zeros(model.config.hidden_size)}, version=40)
    yield engine
    engine.weights.load(weights, version=41)


def test_noise_is_kept_token_by_token(noise: Any, tokenizer: Any, tmp_path: Path) -> None:
    """At the hottest sampling that vLLM takes: broken UTF-8, special tokens, whatever the vocabulary holds."""
    loop = make_loop(noise, tokenizer, group_size=8, temperature=2.0, max_prompt_tokens=128, max_response_tokens=96)
    (group,) = loop.run([Question("noise", "What is 1 + 1?", "2")])
    assert not [t.error for t in group.trajectories if t.error]
    assert any("�" in t.text for t in group.trajectories)
    assert all(len(t.token_ids) == len(t.logprobs) == len(t.entropies) > 0 for t in group.trajectories)
    write_transcripts(str(tmp_path), "noise.jsonl", [group])
    written = [json.loads(line) for line in (tmp_path / "noise.jsonl").read_text("utf-8").splitlines()]
    assert [(t["token_ids"], t["text"]) for t in written] == [(t.token_ids, t.text) for t in group.trajectories]
    loop.close()


def test_an_engine_that_broke_can_be_used_again(engine: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_loop(engine, tokenizer, max_prompt_tokens=128)
    question = Question("q", "What is 1 + 1?", "2")
    steps = iter(range(100))
    step = engine._engine.step

    def broken_step() -> Any:
        if next(steps) == 5:
            raise RuntimeError("an illegal memory access")
        return step()

    with monkeypatch.context() as patched:
        patched.setattr(engine._engine, "step", broken_step)
        with pytest.raises(EngineError, match=r"vLLM failed in a step with \d requests: an illegal memory access"):
            loop.run([question])
    assert engine.num_unfinished == 0
    (group,) = loop.run([question])
    assert [t.end == "error" for t in group.trajectories] == [False, False]
    loop.close()
