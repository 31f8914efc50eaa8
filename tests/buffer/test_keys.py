"""The key rule: what is embedded for a question and a history."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapo_rllib.buffer.keys import key_text, last_characters, trace_id


@pytest.fixture(scope="module")
def tokenizer(minilm):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm)


def length(tokenizer, text: str) -> int:
    return len(tokenizer(text, truncation=False)["input_ids"])  # [CLS] and [SEP] included, as the encoder counts


def test_short_texts_are_kept_whole(tokenizer):
    assert key_text("What is 3 + 5?", "<think>Add.</think>", tokenizer) == "What is 3 + 5?\n<think>Add.</think>"
    assert key_text("What is 3 + 5?", "", tokenizer) == "What is 3 + 5?"


def test_long_texts_keep_the_start_of_the_question_and_the_end_of_the_history(tokenizer):
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]  # one token each
    question = " ".join(words * 20)
    history = " ".join(words[::-1] * 100)
    head, tail = key_text(question, history, tokenizer).split("\n")
    assert head.split() == question.split()[:64]
    assert tail.split() == history.split()[-190:]  # 256 - 2 special - 64
    assert length(tokenizer, f"{head}\n{tail}") == 256


def test_a_short_question_leaves_its_room_to_the_history(tokenizer):
    # 4 question tokens: 256 - 2 - 4 = 250 words of one token.
    assert key_text("how many apples ?", "one " * 1000, tokenizer).count("one") == 250


def test_histories_that_right_truncation_confuses_differ(tokenizer):
    past = "<think>We look at each of the boxes in turn.</think>" * 100
    first, second = (key_text("How many?", past + f"<python>{call}</python>", tokenizer) for call in ("3 + 5", "7 * 9"))
    assert first != second
    assert first.endswith("<python>3 + 5</python>")
    right_truncated = [
        tokenizer("How many?\n" + past + call, truncation=True, max_length=256)["input_ids"] for call in ("3 + 5", "7 * 9")
    ]
    assert right_truncated[0] == right_truncated[1]  # what the rule is there for


@settings(max_examples=60, deadline=None)
@given(question=st.text(max_size=400), history=st.text(max_size=2500))
def test_the_encoder_never_truncates_a_key(tokenizer, question, history):
    text = key_text(question, history, tokenizer, max_tokens=128)
    assert length(tokenizer, text) <= 128
    assert (
        text == question
        or question.startswith(text)
        or any(question.startswith(text[:i]) and history.endswith(text[i + 1 :]) for i, c in enumerate(text) if c == "\n")
    )


def test_words_cut_in_the_middle_stay_within_the_limit(tokenizer):
    # One word of many pieces: cut anywhere, its rest is tokenized into other, maybe more pieces.
    assert length(tokenizer, key_text("x" * 90, "1234567890123" * 7 + " " + "unbelievably" * 8 * 40, tokenizer, 70 + 2)) <= 72


def test_a_limit_without_room_for_a_history_is_refused(tokenizer):
    with pytest.raises(ValueError, match="limit of 66 tokens has no room"):
        key_text("q", "h", tokenizer, max_tokens=66)


def test_the_last_1300_characters_of_question_and_history(tokenizer):
    assert last_characters("What is 3 + 5?", "<think>Add.</think>", tokenizer) == "What is 3 + 5?\n<think>Add.</think>"
    assert last_characters("What is 3 + 5?", "", tokenizer) == "What is 3 + 5?"
    history = "abcdefg " * 200  # 1,600 characters
    assert last_characters("What?", history, tokenizer, max_tokens=10_000) == history[-1300:]
    assert last_characters("x" * 90, "y" * 1250, tokenizer, max_tokens=10_000) == "x" * 49 + "\n" + "y" * 1250


def test_of_the_last_characters_as_many_as_the_encoder_reads(tokenizer):
    history = "one two three four five six seven eight nine ten " * 40  # one token each; 1,300 characters are 265 words
    text = last_characters("What?", history, tokenizer)
    assert text.split() == history.split()[-254:]
    assert length(tokenizer, text) == 256


def test_characters_of_several_tokens_are_cut_whole(tokenizer):
    syllables = "각 " * 60  # three tokens each, all at the offset of the syllable
    assert length(tokenizer, syllables) > 100
    for limit in (40, 41, 42):
        text = last_characters("", syllables, tokenizer, max_tokens=limit)
        assert limit - 3 < length(tokenizer, text) <= limit


@settings(max_examples=40, deadline=None)
@given(question=st.text(max_size=100), history=st.text(max_size=1600))
def test_the_encoder_never_truncates_the_last_characters(tokenizer, question, history):
    text = last_characters(question, history, tokenizer, max_tokens=128)
    assert length(tokenizer, text) <= 128
    assert f"{question}\n{history}".endswith(text) or text == question[-1300:]


def test_trace_ids_tell_every_part_apart():
    ids = {
        trace_id(*parts) for parts in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("a", "b", "c", "s"), ("", "ab", "c"))
    }
    assert len(ids) == 5
    assert all(len(i) == 32 for i in ids)
    assert trace_id("a", "b", "c") == trace_id("a", "b", "c")
