r"""Measures one optimiser step of the learner against TRL's on the same tokens; a table, and with ``--json`` the figures.

    python benchmarks/learner.py --json learner.json --plot docs/learner.png
    python benchmarks/learner.py --short

Model: SmolLM2-135M-Instruct. A batch is one question's group of ``G = 16`` trajectories, saved as tokens once and read by all
sides; text is that of the word problems (or of ``--data``), cut to exact lengths anywhere, so that hardly more than the prompt
can be shared. Two shapes:

    long_prompt    300 prompt tokens, 150 response tokens: ``speedup_long_prompt``, target 3
    short_prompt    60 prompt tokens, 300 response tokens: ``speedup_short_prompt``, target 1.2

Each side is a process of its own that has nothing else to do, and they take turns; the median of the ratios of neighbouring
steps is reported. A step is forward, loss, backward, clipping and AdamW.

*   ``ours``: ``RAPOTorchLearner.update`` with a ``RAPOConfig``, packing and metrics included.
*   ``trl``: ``GRPOTrainer.train`` as it is, but for generation, which hands out the saved batch; timed from the start of the
    step to its end. Its own defaults otherwise, ``per_device_train_batch_size`` 8 among them, with ``loss_type="grpo"``. It
    computes logprobs and entropies in chunks too.
*   ``limit``: plain cross-entropy of the model's own ``forward(labels=...)`` on as many tokens as ours computes, in ordinary
    sequences of prompt + response length, two a pass, same optimiser. ``share_of_limit``: ours / limit in tokens per second.

Equal: weights, tokens, advantages, dtype, threads, AdamW in one fused kernel, learning rate, clipping, and at most as many
tokens at a time as TRL's ``per_device_train_batch_size`` makes, which is what memory depends on. Gradient checkpointing is on,
TRL's default; ours is ``selective`` then, which keeps matrix products and attention. ``--checkpointing full``: ours too
computes everything again; ``none``: nobody does. ``limit`` does what ours does. ``loss_difference`` and
``gradient_norm_difference`` say how far both sides' first steps are apart, the second relative to TRL's norm. Wall time
decides; ``speedup_in_cpu_seconds`` says the same of processor time, which others on the machine disturb less.
``peak_memory_ratio``: the greatest resident memory of our process over that of TRL's while they step, the worse of both shapes
(CUDA: allocated memory).

``--short`` halves all lengths and takes one pair of each shape without a warm-up: under three minutes on two quiet cores. The
sharing is the same; attention and everything that a step costs once weigh differently.

``--scaling`` measures a small random model's time and memory by response tokens, by ``G`` and by vocabulary, ours and as a
textbook would (padded batch, all logits), for the table and, with ``--plot``, the picture.

``--trees`` and ``--roofline`` measure our pass alone, in place of all that, in this process. Shapes: both above, and

    arpo_tree      200 prompt tokens, three levels of two branches of 150 tokens each: 8 trajectories of 450
    tau2_prefix  4,096 prompt tokens, 16 responses of 300

*   ``--trees``: forward, loss and backward of the same trajectories as prefix trees and each whole, in turns, at most 9,000
    tokens at a time. ``speedup``: seconds whole / shared, median and range of neighbouring passes; ``tokens_ratio`` is what
    sharing saves in tokens, ``flops_ratio`` in the model's operations; ``gradient_difference``: the greatest of all weights,
    relative. Anchor: Tree Training reports up to 6.2.
*   ``--roofline``: rates of matrix products at the model's sizes and of a copy; seconds of a step (clipping and AdamW included)
    by part; and how near each comes to these rates: of products by the model's operations, of AdamW by the bytes it must move.

    python benchmarks/learner.py --trees --roofline --json trees.json
    python benchmarks/learner.py --trees --roofline --tiny                 # whether all of it runs, in seconds
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from learner_parts.tree_shapes import TREES, TreeShape

for _name, _value in {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}.items():
    os.environ.setdefault(_name, _value)  # libraries read them when they are imported

SHAPES = {"long_prompt": (300, 150), "short_prompt": (60, 300)}
GROUP_SIZE = 16
ALONE = {name: TreeShape(prompt, ((GROUP_SIZE, response),)) for name, (prompt, response) in SHAPES.items()} | TREES
CHECKPOINTING: dict[str, bool | str] = {"selective": "selective", "full": True, "none": False}


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    from learner_parts.compare import machine
    from learner_parts.report import fields, plot, print_table
    from learner_parts.side import Options

    checkpointing = CHECKPOINTING[arguments.checkpointing]
    model = "tiny, of random weights" if arguments.tiny else arguments.model
    options = Options(model, arguments.dtype, arguments.threads, checkpointing, arguments.trl_batch)
    measured: dict[str, Any] = {"machine": machine(options), "short": arguments.short}
    measured |= _alone(arguments, options) if arguments.trees or arguments.roofline else _compared(arguments, options)
    measured = {**fields(measured), **measured}
    print_table(measured)
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    if arguments.plot and "scaling" in measured:
        plot(measured["scaling"], arguments.plot)


def _compared(arguments: argparse.Namespace, options: Any) -> dict[str, Any]:
    """Our step against TRL's, and how time and memory grow."""
    from learner_parts.compare import compare
    from learner_parts.scaling import scaling
    from learner_parts.tokens import save_batch

    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for shape in arguments.shapes:
            lengths = [length // (2 if arguments.short else 1) for length in SHAPES[shape]]
            file = save_batch(Path(folder) / f"{shape}.npz", arguments.model, *lengths, GROUP_SIZE, arguments.data)
            measured[shape] = compare(options, file, arguments.pairs, warm_up=not arguments.short)
    if arguments.scaling:
        measured["scaling"] = scaling(options, arguments.short)
    return measured


def _alone(arguments: argparse.Namespace, options: Any) -> dict[str, Any]:
    """The worth of sharing prefixes, and the roofline."""
    from learner_parts import roofline, trees
    from learner_parts.step import Trained

    shapes = {name: ALONE[name].shrunk(16 if arguments.tiny else 1) for name in arguments.shapes}
    trained, measured = Trained.load(options, arguments.tiny), {}
    if arguments.trees:
        measured["trees"] = trees.measured(trained, shapes, arguments.pairs)
    if arguments.roofline:
        measured["roofline"] = roofline.measured(trained, shapes, arguments.pairs, options.dtype)
    return measured


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="half the lengths, one pair, no scaling")
    parser.add_argument("--pairs", type=int, help="steps of each side that count (default 5, trees and roofline 3, short 1)")
    parser.add_argument("--shapes", nargs="*", choices=list(ALONE), help="default: all; against TRL there are two")
    parser.add_argument("--trees", action="store_true", help="in place of TRL: prefix trees against whole sequences")
    parser.add_argument("--roofline", action="store_true", help="in place of TRL: where time goes, against the machine's rates")
    parser.add_argument("--tiny", action="store_true", help="of these two: a random tiny model, lengths of a sixteenth")
    parser.add_argument(
        "--scaling", action=argparse.BooleanOptionalAction, help="the table of growth (default: unless --short)"
    )
    parser.add_argument("--data", type=Path, help="texts: JSON lines (.gz too) with `question` and `answer`, GSM8K's form")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a packaged name, a Hugging Face id or a folder")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of the weights, on all sides")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads of each side")
    parser.add_argument("--checkpointing", choices=list(CHECKPOINTING), default="selective", help="see above")
    parser.add_argument("--trl-batch", type=int, default=8, help="TRL's per_device_train_batch_size")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="write the picture of growth here (.png)")
    arguments = parser.parse_args()
    alone = arguments.trees or arguments.roofline
    known = ALONE if alone else SHAPES
    arguments.shapes = list(known) if arguments.shapes is None else arguments.shapes
    if unknown := [shape for shape in arguments.shapes if shape not in known]:
        parser.error(f"--shapes {' '.join(unknown)}: only with --trees or --roofline")
    if arguments.tiny and not alone:
        parser.error("--tiny: only with --trees or --roofline")
    if arguments.pairs is None:
        arguments.pairs = 1 if arguments.short else 3 if alone else 5
    if arguments.scaling is None:
        arguments.scaling = not arguments.short
    return arguments


if __name__ == "__main__":
    main()
