"""OpenVINO in place of an encoder's own forward pass: the same states, told of where it is not used, and nobody told of it."""

import copy
import logging
import re
import subprocess
import sys

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from rapo_rllib.embedding.local import TextEncoder
from rapo_rllib.embedding.openvino import OpenVinoForward, compile_encoder, use_openvino

TINY = {
    "vocab_size": 500,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 130,
}
TINY_DISTILBERT = {"vocab_size": 500, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}


def tiny_bert(kind: type[BertModel] = BertModel) -> BertModel:
    torch.manual_seed(0)
    return kind(BertConfig(**TINY)).eval()


def assert_same_states(model, forward, *lengths: int) -> None:
    width = max(lengths)
    mask = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, model.config.vocab_size, mask.shape) * mask + (1 - mask) * (model.config.pad_token_id or 0)
    with torch.inference_mode():
        theirs = type(model).forward(model, input_ids=ids, attention_mask=mask).last_hidden_state
    ours = forward(input_ids=ids, attention_mask=mask).last_hidden_state
    assert ours.dtype == torch.float32
    assert torch.cosine_similarity(ours, theirs.float(), dim=-1)[mask.bool()].min() > 0.995


def test_a_text_encoder_runs_by_openvino_and_comes_to_the_same_states() -> None:
    model = TextEncoder("all-minilm-l6-v2", key="embedder").loaded().model[0].model
    assert isinstance(model.forward, OpenVinoForward)
    for lengths in ((1,), (8,), (256, 3), (40, 40, 17, 2)):
        assert_same_states(model, model.forward, *lengths)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BertModel(BertConfig(**TINY)),
        lambda: DistilBertModel(DistilBertConfig(**TINY_DISTILBERT)),
        lambda: MPNetModel(MPNetConfig(**TINY)),
        lambda: RobertaModel(RobertaConfig(**TINY)),
        lambda: XLMRobertaModel(XLMRobertaConfig(**TINY)),
    ],
    ids=["bert", "distilbert", "mpnet", "roberta", "xlm-roberta"],
)
def test_all_named_encoders_are_converted(make) -> None:
    torch.manual_seed(0)
    model = make().eval()
    assert use_openvino(model)
    for lengths in ((1,), (100, 20), (16, 15, 14, 1)):
        assert_same_states(model, model.forward, *lengths)


def test_a_decoder_is_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    model = GPT2Model(GPT2Config(vocab_size=500, bos_token_id=0, eos_token_id=0, n_embd=32, n_layer=1, n_head=2)).eval()
    assert not use_openvino(model)
    assert "forward" not in vars(model)
    assert not caplog.records


def test_without_openvino_torch_runs_the_encoder_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_bert()
    monkeypatch.setitem(sys.modules, "openvino", None)  # as where it is not installed
    with caplog.at_level(logging.INFO):
        assert not use_openvino(model)
    assert "forward" not in vars(model)
    assert "is run by torch; `pip install 'rapo_rllib[openvino]'`" in caplog.text


class CannotBeTraced(BertModel):
    """An encoder that refuses to be traced."""

    def forward(self, input_ids=None, attention_mask=None):
        if torch.jit.is_tracing():
            raise RuntimeError("no tracing here")
        return super().forward(input_ids, attention_mask)


class UnknownToOpenVino(BertModel):
    """An encoder with an operation that OpenVINO does not have."""

    def forward(self, input_ids=None, attention_mask=None):
        output = super().forward(input_ids, attention_mask)
        return (torch.special.bessel_j0(output[0]), *output[1:])


class OtherWhenTraced(BertModel):
    """An encoder whose trace computes something else."""

    def forward(self, input_ids=None, attention_mask=None):
        output = super().forward(input_ids, attention_mask)
        return (output[0].flip(-1), *output[1:]) if torch.jit.is_tracing() else output


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (CannotBeTraced, "cannot convert it: .*no tracing here"),
        (UnknownToOpenVino, "cannot convert it: .*bessel_j0"),
        (OtherWhenTraced, r"states differ \(cosine -?0\.\d+\)"),
    ],
)
def test_what_openvino_cannot_do_stays_with_torch_and_is_told(
    kind: type[BertModel], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_bert(kind)
    with caplog.at_level(logging.WARNING):
        assert not use_openvino(model)
    assert "forward" not in vars(model)
    assert len(caplog.records) == 1
    assert re.search(message, caplog.text)


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_are_shared_by_threads_without_each_others_padding(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model = tiny_bert()
    forward = OpenVinoForward(compile_encoder(model))
    assert_same_states(model, forward, *range(120, 0, -4))  # 30 texts, parts of eight and one of six
    mask = torch.tensor([[1] * 40] + [[1] * 3 + [0] * 37] * 20)
    states = forward(input_ids=torch.full_like(mask, 7), attention_mask=mask).last_hidden_state
    assert states.shape == (21, 40, 32)
    assert states[:, :3].abs().sum(-1).min() > 0
    assert states[-1, 8:].abs().max() == 0  # what is padding in all of a part is not computed


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "f32"), (torch.bfloat16, "bf16")])
def test_precision_threads_and_pinning(dtype: torch.dtype, precision: str) -> None:
    compiled = compile_encoder(tiny_bert().to(dtype))
    assert compiled.get_property("INFERENCE_NUM_THREADS") == torch.get_num_threads()
    assert compiled.get_property("ENABLE_CPU_PINNING") is False
    if precision == "f32" or torch.cpu.get_capabilities().get("avx512_bf16"):
        assert compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == precision


WATCH = """
import openvino_telemetry
def tell(name):
    return lambda self, *args, **kwargs: print("REPORTED", name, args[:3])
for name in ("init", "start_session", "send_event"):
    setattr(openvino_telemetry.Telemetry, name, tell(name))
"""
TINY_OURS = (
    "from transformers import BertConfig, BertModel; from rapo_rllib.embedding.openvino import use_openvino; "
    f"assert use_openvino(BertModel(BertConfig(**{TINY})).eval())"
)
OURS = "from rapo_rllib.embedding.local import TextEncoder as T; T('all-minilm-l6-v2', key='embedder').encode(['3 + 5'])"


@pytest.mark.parametrize(
    ("program", "reports"),
    [
        pytest.param("import openvino", True, id="what-it-does-by-itself"),
        pytest.param(OURS, False, id="ours"),
        pytest.param(f"import openvino; print('NOW OURS'); {TINY_OURS}", False, id="ours-after-somebody-else"),
    ],
)
def test_nothing_is_reported_over_the_network(program: str, reports: bool) -> None:
    run = subprocess.run([sys.executable, "-c", WATCH + program], capture_output=True, text=True, timeout=300, check=True)
    assert ("REPORTED" in run.stdout.rpartition("NOW OURS")[2]) is reports, run.stdout
    assert "not run by OpenVINO" not in run.stderr


def test_a_converted_model_says_that_it_cannot_be_copied() -> None:
    model = tiny_bert()
    assert use_openvino(model)
    with pytest.raises(TypeError, match="load the encoder again"):
        copy.deepcopy(model)
