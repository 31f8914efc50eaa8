"""What ``benchmarks/learning.py`` is made of: the task, the traces its base policy imitates, the comparison."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from learning_parts import processes
from learning_parts.chain_run import ChainRun, config_of
from learning_parts.chains import Chain, Chains, calc, expert_steps, make_chain, split_of
from learning_parts.comparison import all_runs, area, compare, rows_of
from learning_parts.habits import behind, habits, held_out, uses
from learning_parts.imitation import IGNORED, Imitation, example, flawed_trace, make_policy, make_tokenizer, protocol
from learning_parts.measures import cost_until, diversity, interval, newest_transcripts, paired_difference, right
from learning_parts.methods import METHODS, NOISE
from learning_parts.plots import curves, on_a_grid
from learning_parts.word_run import WordRun, rows_of_results

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


def test_a_chain_is_read_from_left_to_right():
    assert CHAIN.text == "7 + 5 * 3 - 4 ="
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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_valid_job(method, policy, tmp_path):
    config = config_of(ChainRun(method, 0, str(policy), str(tmp_path)))
    config.validate()
    assert config.uses_retrieval == (method not in ("grpo", "arpo", "luffy"))
    assert config.rollout_settings.retrieval_noise == NOISE.get(method, 0.0)


ROWS = [
    {"tokens": 0, "accuracy": 0.0, "train_s": 0},
    {"tokens": 50, "train_s": 1},
    {"tokens": 100, "accuracy": 0.5, "train_s": 2},
]
ROWS += [{"tokens": 200, "accuracy": 0.5, "train_s": 4}]


def test_area_and_cost():
    assert area(ROWS, 200) == pytest.approx((25 + 50) / 200)
    assert cost_until(ROWS, 0.5, "train_s") == 2
    assert cost_until(ROWS, 0.6, "train_s") is None


def test_intervals():
    assert interval([0.4] * 5) == (0.4, 0.4)
    low, high = interval([0.0, 1.0] * 50)
    assert 0.38 < low < 0.42 < 0.58 < high < 0.62
    with pytest.raises(ValueError, match="values"):
        interval([])


def test_differences_are_paired_by_seed():
    found = paired_difference({0: 0.5, 1: 0.9, 2: 0.1}, {0: 0.25, 1: 0.65, 7: 1.0})
    assert (found["mean"], found["seeds"], found["higher"]) == (0.25, 2, 2)
    assert found["ci"] == (0.25, 0.25)


def test_the_grid_is_as_long_as_the_shortest_run():
    grid, values = on_a_grid([ROWS, ROWS[:3]], points=3)
    assert list(grid) == [0, 50, 100]
    assert values.tolist() == [[0, 0.25, 0.5], [0, 0.25, 0.5]]


def write_run(folder: Path, method: str, seed: int, accuracy: float, done: bool = True) -> None:
    totals = {"rollout_s": 3.0, "train_s": 9.0, "tool_calls": 5, "iteration": 2}
    first = {**totals, "tokens": 0, "accuracy": 0.0}
    middle = {**totals, "tokens": 100, "diversity": 0.5, "diversity_on_policy": 0.25, "right_on_policy": accuracy}
    rows = [first, middle, {**totals, "tokens": 200, "accuracy": accuracy, **({"done": True} if done else {})}]
    (folder / f"{method}-{seed}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_runs_that_ended_are_compared(tmp_path):
    for seed, (rapo, grpo) in enumerate([(0.8, 0.4), (0.6, 0.4)]):
        write_run(tmp_path, "rapo", seed, rapo)
        write_run(tmp_path, "grpo", seed, grpo)
    write_run(tmp_path, "rapo", 2, 1.0, done=False)
    write_run(tmp_path, "noise_1", 0, 0.2)
    assert rows_of(tmp_path / "rapo-2.jsonl") == rows_of(tmp_path / "rapo-9.jsonl") == []
    found = compare(all_runs(tmp_path), target=0.5)
    rapo = found["methods"]["rapo"]
    assert rapo["accuracy_mean"] == pytest.approx(0.7)
    assert rapo["minus_grpo"]["mean"] == pytest.approx(0.3)
    assert rapo["minus_grpo"]["ci"] == pytest.approx((0.2, 0.4))
    assert rapo["mean_accuracy_minus_grpo"]["mean"] == pytest.approx(0.15)
    assert (rapo["rollout_seconds"], rapo["tokens"], rapo["diversity"]) == (3.0, 200, 0.5)
    assert (rapo["right_on_policy_at_the_end"], rapo["right_with_retrieval_at_the_end"]) == (pytest.approx(0.7), None)
    assert rapo["until_target"]["tokens"] == {"reached": 2, "median": 200}
    assert found["methods"]["grpo"]["until_target"]["tokens"] == {"reached": 0, "median": None}
    assert found["noise"] == {"0.0": pytest.approx(0.7), "1.0": 0.2}
    curves(all_runs(tmp_path), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_diversity_counts_what_the_policy_wrote(tmp_path):
    def row(group, written, retrieved=()):
        ids, kinds = [*written, *retrieved], [0] * len(written) + [2] * len(retrieved)
        return {"group": group, "token_ids": ids, "kinds": kinds, "retrievals": [{}] if retrieved else []}

    rows = [row(0, (1, 2)), row(0, (1, 2)), row(0, (1, 2), (9,)), row(0, (3,), (9,)), row(1, (5,)), row(1, (6,))]
    (tmp_path / "000002.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "000001.jsonl").write_text(json.dumps(row(0, (1,))) + "\n")
    newest = newest_transcripts(tmp_path)
    assert newest == rows
    assert diversity(newest) == {
        "diversity_on_policy": pytest.approx((0.5 + 1) / 2),
        "diversity": pytest.approx((0.5 + 1) / 2),
    }


def test_right_trajectories_are_counted_by_whether_anything_was_retrieved():
    rows = [{"reward": reward, "retrievals": shown} for reward, shown in ((1, []), (0, []), (1, [{}]), (0.5, [{}]), (0, [{}]))]
    assert right(rows) == {"right_on_policy": 0.5, "right_with_retrieval": pytest.approx(2 / 3)}
    assert right(rows[:2]) == {"right_on_policy": 0.5}


def test_habits_are_read_behind_right_steps(policy):
    chat = ChatProtocol(make_tokenizer(), protocol())
    text = chat.tokenizer.decode(behind(chat, CHAIN, 1, shown=True))
    assert text.startswith("7 + 5 * 3 - 4 =\n<calc>7+5</calc>\n<result>\n12\n</result>\n")
    assert "<retrieve>\n<calc>12*3</calc>\n<result>\n36\n</result>\n</retrieve>" in text
    assert uses(CHAIN, 1) == ["<answer>\\boxed{36}</answer>", "<calc>36-4</calc>"]
    assert uses(CHAIN, 2) == ["<answer>\\boxed{32}</answer>"]
    assert all(split_of(chain) == "test" for chain in held_out(20))
    found = habits(policy, chains=4)
    assert set(found) == {"careful", "goes_on_1", "goes_on_2", "reads_1", "reads_2"}
    assert 0 < found["goes_on_1"] < 0.2  # of an untrained policy: one token of a hundred
    assert found["careful"] == found["reads_1"] == found["reads_2"] == 0


def test_results_of_tune_become_rows():
    results = [
        {
            "training_iteration": i,
            "time_total_s": 10.0 * i,
            "rapo": {"accuracy_before": 0.1},
            "env_runners": {"tokens": {"generated": 100}, "rollout_s": 2.0, "tools": {"python": {"calls": 7}}},
            **({"evaluation": {"env_runners": {"accuracy": 0.3}}} if i == 2 else {}),
        }
        for i in (1, 2)
    ]
    rows = rows_of_results(results)
    assert rows[0]["accuracy"] == 0.1
    assert rows[-1] == {
        "tokens": 200,
        "rollout_s": 4,
        "tool_calls": 14,
        "train_s": 20,
        "iteration": 2,
        "accuracy": 0.3,
        "done": True,
    }


def test_a_run_that_fails_is_named_and_its_log_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(processes, "IMPORTED", ())
    run = ChainRun("grpo", 3, policy=str(tmp_path / "gone"), folder=str(tmp_path), tokens=100)
    assert processes.run_all([run], at_once=1) == ["grpo-3"]
    assert "grpo, seed 3: " in capsys.readouterr().out
    assert "gone" in run.file.with_suffix(".log").read_text()
    assert rows_of(run.file) == []


def test_word_runs_give_options_that_the_command_has(tmp_path):
    from typer.testing import CliRunner

    from rapo_rllib.cli.main import app

    command = WordRun("grpo", 1, str(tmp_path)).command[3:]
    for option in [word for word in command if word.startswith("--")]:
        assert option in CliRunner().invoke(app, ["train", "file", "--help"], env={"COLUMNS": "200"}).output
    assert Path(command[2]).is_file()
