"""What a policy does with a chain: how often it takes the next step, how often it makes use of one that is shown to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learning_parts.chains import Chain, answer_text, make_chain, split_of
from learning_parts.imitation import CAREFUL, protocol, shown_step
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.steps import render_observation

LENGTH = 3  # calculations of the chains that are asked


def habits(policy: Path, chains: int = 200) -> dict[str, float]:
    """Of the policy in ``policy``, over ``chains`` held-out chains of three calculations.

    ``careful``: share that it answers right, greedily, where it is told to be careful: what it can do.
    ``goes_on_k``: mean probability that it calls the tool again behind ``k`` right steps of its own.
    ``reads_k``: share of chains in which it greedily goes on from the result of a fitting step of another solver behind ``k``
        right steps of its own, or answers with it.
    ``takes_over_1``: share in which it does the same with a step of another chain.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype="float32").eval()
    chat = ChatProtocol(tokenizer, protocol())
    asked = held_out(chains)
    found = {"careful": sum(_solves(model, chat, chain) for chain in asked) / len(asked)}
    for taken in (1, 2):
        found[f"goes_on_{taken}"] = _goes_on(model, chat, [behind(chat, chain, taken) for chain in asked])
        contexts = [behind(chat, chain, taken, shown_step(chain, taken)) for chain in asked]
        found[f"reads_{taken}"] = _share(model, chat, contexts, [uses(chain, taken) for chain in asked])
    others = [*asked[1:], asked[0]]
    contexts = [behind(chat, chain, 1, shown_step(other, 1)) for chain, other in zip(asked, others, strict=True)]
    found["takes_over_1"] = _share(model, chat, contexts, [uses(other, 1) for other in others])
    return found


def held_out(count: int) -> list[Chain]:
    """Chains that no base policy has imitated and no run trains on."""
    rng = random.Random("habits")
    chains: list[Chain] = []
    while len(chains) < count:
        chain = make_chain(rng, (LENGTH,))
        if split_of(chain) == "test":
            chains.append(chain)
    return chains


def behind(chat: ChatProtocol, chain: Chain, taken: int, shown: str = "", careful: bool = False) -> list[int]:
    """Token ids of a question and its first ``taken`` steps, and of what is shown behind them."""
    ids = list(chat.prompt_ids(CAREFUL * careful + chain.text))
    for index in range(taken):
        ids += chat.encode(chain.call(index))
        ids += chat.encode(render_observation(str(chain.values[index + 1]), protocol()))
    return ids + chat.encode(shown)


def uses(chain: Chain, taken: int) -> list[str]:
    """What a policy may write that makes use of step ``taken``."""
    following = [chain.call(taken + 1)] if taken + 1 < len(chain.operations) else []
    return [answer_text(chain.values[taken + 1]), *following]


def _goes_on(model: Any, chat: ChatProtocol, contexts: Sequence[list[int]]) -> float:
    import torch

    (call,) = chat.encode("<calc>")
    with torch.inference_mode():
        logits = [model(torch.tensor([ids])).logits[0, -1] for ids in contexts]
    return float(torch.stack(logits).softmax(-1)[:, call].mean())


def _solves(model: Any, chat: ChatProtocol, chain: Chain) -> bool:
    """Whether it takes every step and answers, greedily, where it is told to be careful."""
    steps = [chain.call(index) for index in range(LENGTH)] + [answer_text(chain.values[-1])]
    return all(says(model, behind(chat, chain, taken, careful=True), chat.encode(step)) for taken, step in enumerate(steps))


def _share(model: Any, chat: ChatProtocol, contexts: Sequence[list[int]], wanted: Sequence[list[str]]) -> float:
    """Share of contexts behind which the most probable tokens are exactly one of the wanted texts."""
    hits = sum(any(says(model, ids, chat.encode(text)) for text in texts) for ids, texts in zip(contexts, wanted, strict=True))
    return hits / len(contexts)


def says(model: Any, context: list[int], tokens: list[int]) -> bool:
    """Whether the most probable tokens behind ``context`` are exactly these."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([[*context, *tokens]])).logits[0, len(context) - 1 : -1]
    return bool(logits.argmax(-1).tolist() == tokens)
