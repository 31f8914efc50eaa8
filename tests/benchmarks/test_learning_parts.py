"""What ``benchmarks/learning.py`` is made of: the task, the traces its base policy imitates, the comparison."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from learning_parts import processes
from learning_parts.chain_run import ChainRun
from learning_parts.chains import Chain, Chains, calc, expert_steps, make_chain, paid_steps, parse_chain, split_of
from learning_parts.forks import fork_figures
from learning_parts.habits import behind, habits, held_out, uses
from learning_parts.imitation import (
    IGNORED,
    Imitation,
    example,
    flawed_trace,
    make_policy,
    make_tokenizer,
    protocol,
    shown_step,
)
from learning_parts.measures import diversity, newest_transcripts
from learning_parts.methods import ARMS, CREDIT, NOISE, SAME_RATE, rated
from learning_parts.results import rows_of

from rapo_rllib.protocol.chat import ChatProtocol

CHAIN = Chain(7, (("+", 5), ("*", 3), ("-", 4)))


def play(chain: Chain, steps: list[str]) -> float:
    """Reward of an episode on ``chain``; observations must be those that the steps show."""
    from rapo_rllib.types import Question

    env = Chains({})
    env.reset(options={"question": Question("q", chain.text, str(chain.values[-1]))})
    reward = 0.0
    for step in steps:
        observation, reward, terminated, _, _ = env.step(step.partition("\n<result>")[0])
        assert terminated or f"<result>\n{observation}\n</result>" in step
    return reward


def test_each_value_of_a_chain_is_paid_once_whoever_told_the_one_before():
    from rapo_rllib.rewards import Episode, EpisodeStep
    from rapo_rllib.types import Question

    question = Question("q", CHAIN.text, "32")  # values 12, 36, 32

    def paid(answer, *outputs):
        steps = [EpisodeStep("", "calc", output, turn=turn) for turn, output in enumerate(outputs)]
        return paid_steps(answer, question, Episode((*steps, EpisodeStep("", turn=len(steps)))))

    assert (paid("32", "12", "36", "32").steps, paid("32").value) == ([1, 1, 1, 0], 1)
    assert paid("12", "12", "12", "99").steps == [1, 0, 0, 0]  # nothing is to be earned by calling again
    assert paid("32", "12", "32").steps == [1, 1, 0]  # 36 was shown to it
    wrong = paid("36", "12", "36")
    assert (wrong.value, wrong.correct) == (0, False)


def test_where_forks_were_and_whether_branches_went_another_way():
    """Two trajectories of a call and an answer; one branch of each behind the call, of which one writes the same answer."""

    def row(group, segments, answer, reward=0.0):
        steps = [{"start": 0, "stop": 2, "tool": "calc"}, {"start": 3, "stop": 5, "tool": None}]
        entropies, kinds = [0.0, 0.0, 0.0, 0.4, 0.2], [0, 0, 1, 0, 0]
        facts = {"steps": steps, "entropies": entropies, "kinds": kinds, "token_ids": [1, 2, 3, *answer], "reward": reward}
        return {"group": group, "segments": segments, **facts}

    rows = [
        *(row(0, [[0, 0]], [7, 8]), row(0, [[0, 0], [3, 1]], [7, 8])),
        *(row(1, [[0, 0]], [7, 8]), row(1, [[0, 0], [3, 1]], [7, 9], reward=1.0)),
    ]
    found = fork_figures(rows)
    (step,) = found["by_step"]
    assert step == 1
    wanted = {"written": 4, "forks": 2, "entropy": 0.3, "first_token": 0.4, "same_as_origin": 0.5}
    assert found["by_step"][1] == pytest.approx(wanted)
    # 12 of 16 tokens and 2 of 4 calls were done; the second group's rewards differ
    assert (found["tokens_shared"], found["calls_shared"], found["groups_with_signal"]) == pytest.approx((0.25, 0.5, 0.5))


def test_a_chain_is_read_from_left_to_right():
    assert CHAIN.text == "7 + 5 * 3 - 4 ="
    assert parse_chain(CHAIN.text) == CHAIN
    assert CHAIN.values == (7, 12, 36, 32)
    assert [CHAIN.call(i) for i in range(3)] == ["<calc>7+5</calc>", "<calc>12*3</calc>", "<calc>36-4</calc>"]


@pytest.mark.parametrize(
    ("call", "result"), [("12*3", "36"), ("7 + 5", "12"), ("3-4", "-1"), ("3/4", "?"), ("", "?"), ("1+", "?")]
)
def test_the_tool_does_one_operation(call, result):
    assert calc(call) == result


def test_the_expert_is_right_and_who_stops_early_is_wrong():
    rng = random.Random(0)
    for _ in range(50):
        chain = make_chain(rng, (2, 3))
        steps = list(expert_steps(chain, protocol()))
        assert play(chain, steps) == 1.0
        assert play(chain, [steps[0], f"<answer>\\boxed{{{chain.values[1]}}}</answer>"]) == 0.0


def test_training_and_test_questions_are_apart_whatever_the_seed():
    asked = {
        split: {q.text for seed in range(3) for q in Chains.questions({"seed": seed}, split)} for split in ("train", "test")
    }
    assert not asked["train"] & asked["test"]
    assert all(len(texts) > 0 for texts in asked.values())
    splits = Counter(split_of(make_chain(random.Random(i), (2, 3))) for i in range(1000))
    assert 0.14 < splits["test"] / 1000 < 0.26


def text_of(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def test_flawed_traces_seldom_take_the_second_step():
    rng = random.Random(0)
    how = Imitation(shown=0.0, late=0.0)
    traces = [text_of(flawed_trace(CHAIN, rng, how, how.diligence)) for _ in range(4000)]
    share = sum(trace.count("<calc>") > 1 for trace in traces) / len(traces)
    assert share == pytest.approx(how.diligence, rel=0.35)
    assert all(trace.startswith("<calc>7+5</calc>\n<result>\n12\n</result>\n") for trace in traces)
    assert text_of(flawed_trace(CHAIN, rng, how, 1.0)) == "".join(expert_steps(CHAIN, protocol()))


def test_of_late_traces_only_the_end_is_imitated():
    rng = random.Random(0)
    traces = [flawed_trace(CHAIN, rng, Imitation(shown=0.0, late=1.0), 0.0) for _ in range(60)]
    calls = [[piece.written for piece in trace if "<calc>" in piece.text] for trace in traces]
    assert {tuple(written) for written in calls} == {(True,), (False,), (False, False)}
    assert all(trace[-1].written for trace in traces)


def test_flawed_traces_go_on_from_steps_that_fit_alone():
    rng = random.Random(0)
    fits = text_of(flawed_trace(CHAIN, rng, Imitation(shown=1.0, fitting=1.0), 0.0))
    assert "<retrieve>\n<calc>12*3</calc>\n<result>\n36\n</result>\n</retrieve>\n<answer>\\boxed{36}" in fits
    strange = text_of(flawed_trace(CHAIN, rng, Imitation(shown=1.0, fitting=0.0), 0.0))
    assert "<retrieve>" in strange
    assert strange.endswith("<answer>\\boxed{12}</answer>")


def test_only_what_solvers_wrote_is_imitated():
    tokenizer = make_tokenizer()
    chat = ChatProtocol(tokenizer, protocol())
    ids, labels = example(chat, CHAIN, random.Random(3), Imitation(shown=1.0, careful=1.0))
    text, learned = tokenizer.decode(ids), tokenizer.decode([label for label in labels if label != IGNORED])
    assert text.startswith("careful: 7 + 5 * 3 - 4 =\n<calc>7+5</calc>")
    assert learned.startswith("<calc>7+5</calc><calc>")
    assert learned.endswith("<answer>\\boxed{32}</answer><eos>")
    assert "<retrieve>" in text
    assert "<retrieve>" not in learned and "<result>" not in learned
    assert len(ids) == len(labels)
    assert tokenizer.unk_token_id not in ids


def test_the_tokenizer_keeps_text_and_pieces():
    tokenizer = make_tokenizer()
    chat = ChatProtocol(tokenizer, protocol())
    pieces = [piece.text for piece in flawed_trace(CHAIN, random.Random(1), Imitation(shown=1.0), 1.0)]
    assert tokenizer.decode(tokenizer.encode("".join(pieces))) == "".join(pieces)
    assert [token for piece in pieces for token in chat.encode(piece)] == chat.encode("".join(pieces))
    assert chat.prompt_ids(CHAIN.text) == tokenizer.encode(CHAIN.text + "\n")


def test_the_base_policy_is_trained_once(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    how = Imitation(hidden_size=32, num_layers=1, steps=3, batch=2)
    folder = make_policy(tmp_path / "policy", how, threads=1)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_policy(folder, how, threads=1) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert AutoTokenizer.from_pretrained(folder).encode("<calc>") == make_tokenizer().encode("<calc>")
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 1
    make_policy(folder, replace(how, steps=4), threads=1)
    assert (folder / "model.safetensors").stat().st_mtime_ns > written


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"), Imitation(hidden_size=32, num_layers=1, steps=1, batch=2), threads=1)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_valid_job(arm, policy, tmp_path):
    config = ChainRun(arm, 0, 3, 1e-4, str(policy), str(tmp_path)).config()
    config.validate()
    assert config.settings.uses_retrieval == (arm != SAME_RATE and rated(arm) not in ("grpo", "luffy"))
    assert arm not in CREDIT or config.clip_high == 0.28  # as GRPO's and RAPO's is
    assert config.settings.buffer.filter.hide_answers == (arm == "rapo_hidden")
    assert config.settings.buffer.filter.question == "any"
    assert config.settings.buffer.uri == str(tmp_path / f"buffer-3-{arm}-0.0001-0.db")
    noise = {name: p for p, name in NOISE.items()} | {"noise_0.5": 0.5, "oracle": 0.5}
    assert config.settings.rollout.retrieval_noise == noise.get(arm, 0.0)


def test_diversity_counts_what_the_policy_wrote(tmp_path):
    def row(group, written, retrieved=()):
        ids, kinds = [*written, *retrieved], [0] * len(written) + [2] * len(retrieved)
        return {"group": group, "token_ids": ids, "kinds": kinds, "retrievals": [{}] if retrieved else []}

    rows = [row(0, (1, 2)), row(0, (1, 2)), row(0, (1, 2), (9,)), row(0, (3,), (9,)), row(1, (5,)), row(1, (6,))]
    (tmp_path / "000002.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "000001.jsonl").write_text(json.dumps(row(0, (1,))) + "\n")
    newest = newest_transcripts(tmp_path)
    assert newest == rows
    assert diversity(newest) == {"diversity_on_policy": pytest.approx((0.5 + 1) / 2), "diversity": pytest.approx((0.5 + 1) / 2)}


def test_habits_are_read_behind_right_steps(policy):
    chat = ChatProtocol(make_tokenizer(), protocol())
    text = chat.tokenizer.decode(behind(chat, CHAIN, 1, shown_step(CHAIN, 1)))
    assert text.startswith("7 + 5 * 3 - 4 =\n<calc>7+5</calc>\n<result>\n12\n</result>\n")
    assert "<retrieve>\n<calc>12*3</calc>\n<result>\n36\n</result>\n</retrieve>" in text
    assert uses(CHAIN, 1) == ["<answer>\\boxed{36}</answer>", "<calc>36-4</calc>"]
    assert uses(CHAIN, 2) == ["<answer>\\boxed{32}</answer>"]
    assert all(split_of(chain) == "test" for chain in held_out(20))
    found = habits(policy, chains=4)
    assert set(found) == {"careful", "goes_on_1", "goes_on_2", "reads_1", "reads_2", "takes_over_1"}
    assert 0 < found["goes_on_1"] < 0.2  # of an untrained policy: one token of a hundred
    assert found["careful"] == found["reads_1"] == found["takes_over_1"] == 0


def test_a_run_that_fails_is_named_and_its_log_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(processes, "IMPORTED", ())
    run = ChainRun("grpo", 3, 2, 1e-4, policy=str(tmp_path / "gone"), folder=str(tmp_path), tokens=100)
    assert processes.run_all([run], at_once=1) == ["2-grpo-0.0001-3"]
    assert "2-grpo-0.0001-3: " in capsys.readouterr().out
    assert "gone" in run.file.with_suffix(".log").read_text()
    assert rows_of(run.file) == []


def test_traces_of_others_are_of_no_question_that_is_asked() -> None:
    env = {"lengths": (2,), "seed": 3}
    asked = {question.text for split in ("train", "test") for question in Chains.questions(env, split)}
    own = [expert.question.text for expert in Chains.expert_trajectories(env)]
    others = [expert.question.text for expert in Chains.expert_trajectories({**env, "traces_of_others": True})]
    assert set(own) <= asked and len(own) == 400
    assert not asked & set(others) and 300 < len(others) < 400  # of two calculations some come twice
