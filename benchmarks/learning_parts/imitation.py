r"""The base policy: a language model of a million weights that imitates flawed traces, trained here and kept in a folder.

The solvers whose traces it reads calculate well, but after a result they nearly always answer at once: ``diligence`` of them
take the next step. Those that were told to be careful (their questions begin with ``careful:``) take every step, so the base
policy knows how a chain goes on; the questions of the task do not say so, as a language model can do much that it is not asked
for. Some traces hold steps of others, in the protocol's own form, which no solver wrote and none learns to write: solvers go on
from those that fit and pass over those that do not. Of some only the end is imitated, so that it is known what to make of a
result that few solvers get to.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learning_parts.chains import RETRIEVAL_SENTENCE, Chain, answer_text, make_chain, split_of
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings

CAREFUL = "careful: "
SPECIAL = ("<pad>", "<eos>", "<unk>")
TAGS = ("calc", "result", "retrieve", "answer", "think")
CHARACTERS = "\n !#%()*+,-./0123456789:;=?ABCDEFGHIJKLMNOPQRSTUVWXYZ\\_abcdefghijklmnopqrstuvwxyz{}<>"
PIECES = r"</?(?:calc|result|retrieve|answer|think)>|\\boxed\{|A step of another solver:|[\s\S]"
IGNORED = -100  # of labels
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


@dataclass(frozen=True)
class Imitation:
    """How the base policy is made."""

    diligence: float = 0.03  # share of decisions after a result that go on, where the chain does
    careful: float = 0.3  # share of traces whose solver was told to be careful, and always goes on
    late: float = 0.4  # share of traces of which only what follows a later result is imitated, the steps before it as context
    shown: float = 0.5  # share of results behind which a step of another solver stands
    fitting: float = 0.5  # share of those that belong to this chain, where it goes on
    hidden_size: int = 128
    num_layers: int = 4
    lengths: tuple[int, ...] = (2, 3, 4)  # calculations of the chains
    steps: int = 2000  # optimiser steps; with too few it confuses signs
    batch: int = 32  # traces of one
    lr: float = 2e-3
    seed: int = 0


def protocol() -> ProtocolSettings:
    """The text protocol of task and traces."""
    return ProtocolSettings(system_prompt="", retrieval_sentence=RETRIEVAL_SENTENCE)


def make_tokenizer() -> Any:
    """One token per character, tag and fixed phrase."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tags = [f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")]
    words = [*SPECIAL, *tags, "\\boxed{", RETRIEVAL_SENTENCE, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = TEMPLATE
    return fast


@dataclass(frozen=True)
class Piece:
    """Part of a trace: what the solver wrote, or what came back to it."""

    text: str
    written: bool


def flawed_trace(chain: Chain, rng: random.Random, how: Imitation, diligence: float) -> list[Piece]:
    """What a solver who goes on with probability ``diligence`` writes for ``chain``, behind its question, and what it reads."""
    settings = protocol()
    pieces: list[Piece] = []
    given = rng.randrange(len(chain.operations)) if rng.random() < how.late else 0
    done, own = 0, True
    while True:
        if own:
            result = render_observation(str(chain.values[done + 1]), settings)
            pieces += [Piece(chain.call(done), done >= given), Piece(result, False)]
            done += 1
        left = done < len(chain.operations)
        if own and rng.random() < how.shown:
            fits = left and rng.random() < how.fitting
            pieces.append(Piece(shown_step(*((chain, done) if fits else _unrelated(rng, how))), False))
            done += fits
        own = done < len(chain.operations) and (done < given or rng.random() < diligence)
        if not own:
            return [*pieces, Piece(answer_text(chain.values[done]), True)]


def _unrelated(rng: random.Random, how: Imitation) -> tuple[Chain, int]:
    chain = make_chain(rng, how.lengths)
    return chain, rng.randrange(len(chain.operations))


def shown_step(chain: Chain, index: int) -> str:
    """Step ``index`` of ``chain`` as the policy reads a retrieved one."""
    step = chain.call(index) + render_observation(str(chain.values[index + 1]), protocol())
    return ChatProtocol(None, protocol()).retrieved_text(step)


def make_policy(folder: Path, how: Imitation, threads: int) -> Path:
    """Train the base policy, unless ``folder`` holds one that was made in the same way; returns its folder."""
    made = folder / "imitation.json"
    if made.exists() and json.loads(made.read_text()) == json.loads(json.dumps(asdict(how))):
        return folder
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(how.seed)
    tokenizer = make_tokenizer()
    model = _model(tokenizer, how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=how.lr, betas=(0.9, 0.95), weight_decay=0.01)
    warm = torch.optim.lr_scheduler.OneCycleLR(optimizer, how.lr, total_steps=how.steps, pct_start=0.05)
    rng = random.Random(how.seed)
    for step in range(how.steps):
        ids, labels = _batch(tokenizer, rng, how)
        logits = model(input_ids=ids, attention_mask=ids != tokenizer.pad_token_id).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        if step % 100 == 0:
            print(f"imitation: step {step} of {how.steps}, loss {loss.item():.3f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)  # half the size: those that count are in the repository
    tokenizer.save_pretrained(folder)
    made.write_text(json.dumps(asdict(how)))
    return folder


def _model(tokenizer: Any, how: Imitation) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=how.hidden_size,
            intermediate_size=how.hidden_size * 8 // 3,
            num_hidden_layers=how.num_layers,
            num_attention_heads=how.hidden_size // 32,
            num_key_value_heads=how.hidden_size // 32,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _batch(tokenizer: Any, rng: random.Random, how: Imitation) -> Any:
    """Token ids of questions and traces, and labels, of the traces alone. Both ``[batch, T]``, padded on the right."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows, labels = [], []
    while len(rows) < how.batch:
        chain = make_chain(rng, how.lengths)
        if split_of(chain) == "train":
            ids, imitated = example(ChatProtocol(tokenizer, protocol()), chain, rng, how)
            rows.append(torch.tensor(ids))
            labels.append(torch.tensor(imitated))
    return pad_sequence(rows, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=IGNORED)


def example(chat: ChatProtocol, chain: Chain, rng: random.Random, how: Imitation) -> tuple[list[int], list[int]]:
    """Tokens of a question and a trace of it, encoded as in a rollout, and the same with ``IGNORED`` where no solver wrote."""
    careful = rng.random() < how.careful
    ids = chat.prompt_ids(CAREFUL * careful + chain.text)
    labels = [IGNORED] * len(ids)
    for piece in flawed_trace(chain, rng, how, 1.0 if careful else how.diligence):
        tokens = chat.encode(piece.text)
        ids += tokens
        labels += tokens if piece.written else [IGNORED] * len(tokens)
    return [*ids, *chat.end_ids[:1]], [*labels, *chat.end_ids[:1]]
