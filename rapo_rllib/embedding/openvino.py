"""A text encoder's forward pass by OpenVINO, an extra: up to twice as fast on a CPU as torch's. Flow: ``local.py`` -> here.

Tokens, pooling and all else stay with sentence-transformers, whose own OpenVINO backend needs an older ``transformers``.
OpenVINO reports its import, and what ``openvino.convert_model`` does, over the network without asking. Here it is imported
without the package that sends. The frontend below that function is called, which is silent whoever has imported it before.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import openvino
    import torch
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

ENCODERS = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta")  # model types that are converted
PRECISIONS = {"torch.bfloat16": "bf16", "torch.float32": "f32"}
MIN_COSINE = 0.99  # of both forward passes' states, over all texts: bfloat16 rounds in other places, 0.9999 is usual
PART_ROWS = 8  # texts that a thread takes at once: small matrices stay in the caches
PAD_TO = 8  # tokens; kernels are compiled and kept for every shape, so there should be few
TELEMETRY = "openvino_telemetry"
FIRST_ID = 100  # of made-up texts: below are special tokens

log = logging.getLogger(__name__)


class OpenVinoForward:
    """Called as the model's ``forward`` with single texts; for one thread at a time.

    Args:
        compiled: from :func:`compile_encoder`.
    """

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        from openvino import AsyncInferQueue

        self._alone = compiled.create_infer_request()
        self._streams = compiled.get_property("NUM_STREAMS")
        self._queue = AsyncInferQueue(compiled, self._streams)

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> BaseModelOutput:
        """Last hidden states, float32 ``[B, T, D]``, of ids and mask ``[B, T]``; token types are all 0 in single texts.

        Texts go in parts to whichever thread is free, without the padding that is only other parts'; there the states are 0.
        """
        from transformers.modeling_outputs import BaseModelOutput

        rows = min(PART_ROWS, math.ceil(len(input_ids) / self._streams))
        parts = [_trimmed(ids, mask) for ids, mask in zip(input_ids.split(rows), attention_mask.split(rows), strict=True)]
        if len(parts) == 1:  # in this thread, which takes a fifth less time for a single text
            found = {0: self._alone.infer(parts[0])[0]}
        else:
            found = {}
            self._queue.set_callback(lambda request, part: found.update({part: request.get_output_tensor(0).data.copy()}))
            for part, inputs in enumerate(parts):
                self._queue.start_async(inputs, part)
            self._queue.wait_all()
        states = _joined([found[part] for part in range(len(parts))], input_ids.shape[1])
        return BaseModelOutput(last_hidden_state=states)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> OpenVinoForward:
        raise TypeError("a compiled model cannot be copied; load the encoder again")


def use_openvino(model: PreTrainedModel) -> bool:
    """Replace the forward pass of an encoder on the CPU, if OpenVINO can do it and comes to the same states.

    Takes as many threads as torch has now. What cannot be converted is told of in the log, and stays as it is; so does every
    encoder where OpenVINO, an extra, is not installed.

    Returns:
        Whether it was replaced.
    """
    if model.config.model_type not in ENCODERS or str(model.dtype) not in PRECISIONS:
        return False
    if importlib.util.find_spec("openvino") is None:
        log.info("%s is run by torch; `pip install 'rapo_rllib[openvino]'` makes it faster", model.name_or_path)
        return False
    _import_silently()
    from openvino.frontend import GeneralFailure, NotImplementedFailure, OpConversionFailure, OpValidationFailure

    try:
        forward = OpenVinoForward(compile_encoder(model))
        cosine = min(_cosine(model, forward, *shape) for shape in ((1, 8), (3, 24)))
    except (RuntimeError, GeneralFailure, NotImplementedFailure, OpConversionFailure, OpValidationFailure) as error:
        reason = " ".join(str(error).split())[:300]
        log.warning("%s is not run by OpenVINO, which cannot convert it: %s", model.name_or_path, reason)
        return False
    if not cosine > MIN_COSINE:
        log.warning("%s is not run by OpenVINO, whose states differ (cosine %.3f)", model.name_or_path, cosine)
        return False
    model.forward = forward  # type: ignore[method-assign]
    log.info("%s is run by OpenVINO", model.name_or_path)
    return True


def compile_encoder(model: PreTrainedModel) -> openvino.CompiledModel:
    """The model traced, converted and compiled for this CPU, any number of texts of any length, in the model's own precision.

    Raises:
        RuntimeError: it cannot be traced or compiled.
        openvino.frontend.OpConversionFailure: it does something that OpenVINO does not know; or its other failures.
    """
    _import_silently()
    from openvino import Core, PartialShape
    from openvino.frontend import FrontEndManager
    from torch import get_num_threads

    example = dict(zip(("input_ids", "attention_mask"), _texts(model, 3, 16), strict=True))
    decoder = _traced(model, example)
    frontend = FrontEndManager().load_by_framework("pytorch")
    converted = frontend.convert(frontend.load(decoder))  # reads the decoder, which it does not keep alive
    converted.reshape({name: PartialShape([-1, -1]) for name in example})
    return Core().compile_model(
        converted,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": PRECISIONS[str(model.dtype)],
            "INFERENCE_NUM_THREADS": get_num_threads(),
            "NUM_STREAMS": get_num_threads(),  # texts side by side, one thread each: more than all threads on each in turn
            "ENABLE_CPU_PINNING": False,  # env runners on one machine would all be pinned to its first cores
        },
    )


def _import_silently() -> None:
    """Import OpenVINO while its telemetry cannot be: it takes a stub then, for as long as the process lives."""
    if "openvino" in sys.modules:
        return
    imported = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # an ImportError for whoever asks
    try:
        importlib.import_module("openvino")
    finally:
        del sys.modules[TELEMETRY]
        if imported is not None:
            sys.modules[TELEMETRY] = imported


def _trimmed(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, np.ndarray]:
    """Ids and mask ``[B, T]`` without the columns at the end that are padding in all rows, but for a multiple of ``PAD_TO``."""
    width = math.ceil((int(mask.any(dim=0).nonzero().max()) + 1) / PAD_TO) * PAD_TO
    return {"input_ids": ids[:, :width].numpy(), "attention_mask": mask[:, :width].numpy()}


def _joined(parts: Sequence[np.ndarray], width: int) -> torch.Tensor:
    """States of parts, ``[B_i, T_i, D]``, as one tensor ``[B, width, D]``."""
    import torch

    states = torch.zeros(sum(map(len, parts)), width, parts[0].shape[2])
    first = 0
    for part in parts:
        states[first : first + len(part), : part.shape[1]] = torch.from_numpy(part)
        first += len(part)
    return states


def _traced(model: PreTrainedModel, example: dict[str, torch.Tensor]) -> TorchScriptPythonDecoder:
    import torch
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
    from transformers.utils import logging

    encoder = copy.deepcopy(model).float()  # the precision is OpenVINO's to choose
    encoder.config.return_dict = False
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # tracing reads all properties, the loss among them, which an encoder does not have
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # branches on shapes, which come out alike for all
            warnings.simplefilter("ignore", DeprecationWarning)  # a traced model is what the frontend reads
            return TorchScriptPythonDecoder(encoder, example_input=example)
    finally:
        logging.set_verbosity(verbosity)


def _texts(model: PreTrainedModel, count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up ids and mask ``[count, length]``; but for the first, texts end earlier, so that the mask matters."""
    import torch

    ids = FIRST_ID + torch.arange(count * length).reshape(count, length) * 7 % (model.config.vocab_size - FIRST_ID)
    ends = length - 3 * torch.arange(count)[:, None]
    mask = (torch.arange(length)[None] < ends).long()
    return torch.where(mask.bool(), ids, model.config.pad_token_id or 0), mask


def _cosine(model: PreTrainedModel, forward: OpenVinoForward, count: int, length: int) -> float:
    """Least cosine of both forward passes' states, over the tokens of made-up texts."""
    import torch

    ids, mask = _texts(model, count, length)
    with torch.inference_mode():
        theirs = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        ours = forward(input_ids=ids, attention_mask=mask).last_hidden_state
    return torch.cosine_similarity(ours, theirs, dim=-1)[mask.bool()].min().item()
