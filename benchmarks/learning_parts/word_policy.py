"""Base policies of the word problems: made by the plugin's own warm start, and held against the gates of the plan."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from learning_parts.habits import says
from learning_parts.plan import WORD_GATES, WORD_POLICIES
from learning_parts.policies import passes
from learning_parts.word_traces import (
    CAREFUL,
    PROTOCOL,
    TASK,
    Flawed,
    answer_text,
    protocol,
    shown_text,
    step_text,
    write_traces,
)
from rapo_rllib.algorithm.warm_start import warm_start
from rapo_rllib.envs.word_problems.env import WordProblemQuestions, WordProblemsOptions
from rapo_rllib.envs.word_problems.problem import WordProblem
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.protocol.chat import ChatProtocol

MODEL = "smollm2-135m-instruct"
LR, BATCH = 1e-4, 16
MOST = 6  # seeds that are tried
_FLAWED = Flawed()


def base_config(model: str = MODEL) -> Any:
    """What all runs on the word problems have in common."""
    from rapo_rllib import RAPOConfig

    return (
        RAPOConfig()
        .environment("rapo/word_problems", env_config=TASK)
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .training(
            model={"name_or_path": model, "logits_chunk_size": 128, "gradient_checkpointing": False},
            engine={"max_num_seqs": 96, "kv_cache_gib": 0.5, "enforce_eager": True},
            protocol=PROTOCOL,
            max_prompt_tokens=256,
            max_response_tokens=320,
            max_step_tokens=40,
            max_tokens_per_micro_batch=720,
        )
    )


def make_word_policy(folder: Path, how: Flawed, model: str = MODEL) -> Path:
    """The folder of the base policy, which is made unless it is there; its traces and its facts are beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    traces = folder / f"flawed-{how.seed}.jsonl"
    write_traces(traces, how)
    settings = {"traces": str(traces), "num_trajectories": how.count, "shown_share": 0.0, "lr": LR, "batch_size": BATCH}
    config = base_config(model).training(warm_start={**settings, "folder": str(folder / "kept")})
    made = warm_start(config, Progress("words"))
    assert made is not None
    return Path(made.folder)


def word_habits(policy: Path, count: int = 200) -> dict[str, float]:
    """Of the policy, over held-out problems of three operations; the names are those of ``habits.habits``."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(policy, dtype="bfloat16").eval()
    chat = ChatProtocol(AutoTokenizer.from_pretrained(policy), protocol())
    options = WordProblemsOptions(steps=(3, 3), seed=7, num_test=count, tools=("calculator",))
    source = WordProblemQuestions(options, "test")
    asked = [source.problem(index) for index in range(count)]
    others = random.Random(0).sample(asked, count)
    careful = [all(_writes(model, chat, problem, taken, careful=True) for taken in range(4)) for problem in asked]
    fitting = [_uses(model, chat, problem, problem) for problem in asked]
    unfitting = [
        _uses(model, chat, problem, other) for problem, other in zip(asked, others, strict=True) if problem is not other
    ]
    return {
        "careful": sum(careful) / count,
        "goes_on_1": _goes_on(model, chat, asked),
        "reads_1": sum(fitting) / count,
        "takes_over_1": sum(unfitting) / len(unfitting),
    }


def _behind(chat: ChatProtocol, problem: WordProblem, taken: int, shown: str = "", careful: bool = False) -> list[int]:
    """Token ids of a question and its first ``taken`` steps, and of what is shown behind them."""
    ids = list(chat.prompt_ids(CAREFUL * careful + problem.text))
    for operation in problem.operations[:taken]:
        call, closing, result = step_text(operation).partition("</calculator>")
        ids += [*chat.encode(call + closing), *chat.encode(result)]
    return ids + chat.encode(shown)


def _writes(model: Any, chat: ChatProtocol, problem: WordProblem, taken: int, careful: bool) -> bool:
    """Whether it greedily writes the step behind ``taken`` right ones."""
    last = taken == len(problem.operations)
    text = answer_text(problem.answer) if last else f"<calculator>{problem.operations[taken].code}</calculator>"
    return says(model, _behind(chat, problem, taken, careful=careful), chat.encode(text))


def _uses(model: Any, chat: ChatProtocol, problem: WordProblem, shown: WordProblem) -> bool:
    """Whether, shown the second step of ``shown`` behind its own first one, it answers with it or goes on from it."""
    context = _behind(chat, problem, 1, shown_text(shown.operations[1]))
    wanted = [answer_text(shown.operations[1].value), f"<calculator>{shown.operations[2].code}</calculator>"]
    return any(says(model, context, chat.encode(text)) for text in wanted)


def _goes_on(model: Any, chat: ChatProtocol, asked: list[WordProblem]) -> float:
    """Mean probability that it calls the tool, and does not answer, behind a right step of its own.

    Both tags begin alike. What decides is their first token that differs; later ones merge with what stands behind a tag.
    """
    import torch

    call, answer = chat.encode("<calculator>"), chat.encode("<answer>")
    alike = next(index for index, (one, other) in enumerate(zip(call, answer, strict=False)) if one != other)
    shares = []
    with torch.inference_mode():
        for problem in asked:
            context = [*_behind(chat, problem, 1), *call[:alike]]
            chances = model(torch.tensor([context])).logits[0, -1].float().softmax(-1)
            shares.append(float(chances[call[alike]] / (chances[call[alike]] + chances[answer[alike]])))
    return sum(shares) / len(shares)


def word_policies(folder: Path, note: Path, model: str = MODEL, how: Flawed = _FLAWED) -> list[Path]:
    """Folders of the base policies that pass the gates, in order; the habits of all that were tried are in ``note``.

    Their traces are as ``how`` says, but for its seed.

    Raises:
        ValueError: too few of the seeds pass.
    """
    tried: dict[str, dict[str, float]] = json.loads(note.read_text()) if note.exists() else {}
    good: list[Path] = []
    for seed in range(MOST):
        name = f"words-{seed}"
        if name in tried and not passes(tried[name], WORD_GATES):
            continue
        policy = make_word_policy(folder, replace(how, seed=seed), model)
        if name not in tried:
            tried[name] = word_habits(policy)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(tried, indent=1) + "\n")
        if passes(tried[name], WORD_GATES):
            good.append(policy)
        if len(good) == WORD_POLICIES:
            return good
    raise ValueError(f"only {len(good)} of {MOST} base policies pass the gates {WORD_GATES}")
