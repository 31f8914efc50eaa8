"""Choice of the parser for a model's calls: the named one, or the first that reads back a call that the chat template writes.

ChatTemplate.sample_turn -> a call as the template writes it -> parsers in turn -> the one that finds that very call
"""

from __future__ import annotations

import logging
from typing import Any

from rapo_rllib.protocol.calls import JSON, CallReader, MakeReader, read_json, read_object
from rapo_rllib.protocol.template import SAMPLE, SAMPLE_SCHEMA, ChatTemplate, Thoughts

logger = logging.getLogger(__name__)

# vLLM's parsers as `auto` tries them: the most used first, and of two that read the same form the one made for it; then ours
ORDER = (
    *("hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4"),
    *("gemma4", "llama4_pythonic", "pythonic", "lfm2", "xlam", "kimi_k2", "minimax_m2", "seed_oss", "step3p5"),
    *("granite4", "granite", "hunyuan_a13b", "phi4_mini_json", "internlm", "olmo3", "functiongemma", "muse_glimmer"),
    JSON,
)


def choose_parser(asked: str, tokenizer: Any, template: ChatTemplate, thoughts: Thoughts, make_reader: MakeReader) -> str:
    """Choose a parser by name: ``asked``, or for ``auto`` the first that reads back a call that ``template`` writes.

    Raises:
        ValueError: there is no such parser; or, for ``auto``, none reads the call back, or the template writes none.
    """
    try:
        header, turn = template.sample_turn()
    except ValueError as error:
        if asked != "auto":
            return asked
        raise ValueError(f"protocol.tool_parser = 'auto': no call can be tried: {error}; name a parser") from error
    shown = SAMPLE.name in turn
    _, said = thoughts.split(turn, thoughts.left_open(header))
    if asked != "auto":
        if shown and not _reads_back(said, reader_of(asked, tokenizer, [SAMPLE_SCHEMA], make_reader)):
            logger.warning(
                "protocol.tool_parser = %r does not read the form in which the model's chat template writes calls (%s)",
                *(asked, said.strip()),
            )
        return asked
    if not shown:
        raise ValueError(
            "protocol.tool_parser = 'auto': the model's chat template does not say how it writes calls (it leaves out those of "
            f"an earlier turn), so no parser can be tried; name the family's parser, for example one of {', '.join(ORDER)}"
        )
    for name in ORDER:
        try:
            if _reads_back(said, reader_of(name, tokenizer, [SAMPLE_SCHEMA], make_reader)):
                return name
        except ValueError:  # not in this vLLM, or not with this tokenizer
            continue
    raise ValueError(
        f"protocol.tool_parser = 'auto': no parser reads back the call that the model's chat template writes: {said.strip()!r} "
        f"(tried: {', '.join(ORDER)}); name the family's own, if vLLM has another, or set protocol.format to 'tags'"
    )


def reader_of(parser: str, tokenizer: Any, schemas: Any, make_reader: MakeReader) -> CallReader:
    """Make the reader of calls for a parser, vLLM's or ours. Raises ``ValueError`` if ``make_reader`` does."""
    return read_json if parser == JSON else make_reader(parser, tokenizer, schemas)


def _reads_back(said: str, read: CallReader) -> bool:
    """Return whether ``read`` finds the sample call and nothing else."""
    found = read(said)
    if len(found.calls) != 1 or found.content.strip():
        return False
    name, arguments = found.calls[0]
    return name == SAMPLE.name and read_object(arguments)[0] == SAMPLE.arguments
