"""The key rule: what is embedded for a question and a history."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapo_rllib.buffer.keys import goal_and_recent, last_characters, trace_id


@pytest.fixture(scope="module")
def tokenizer(minilm):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm)


def length(tokenizer, text: str) -> int:
    return len(tokenizer(text, truncation=False)["input_ids"])  # [CLS] and [SEP] included, as the encoder counts


def test_short_texts_are_kept_whole(tokenizer):
    assert goal_and_recent("What is 3 + 5?", "<think>Add.</think>", tokenizer) == "What is 3 + 5?\n<think>Add.</think>"
    assert goal_and_recent("What is 3 + 5?", "", tokenizer) == "What is 3 + 5?"


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]  # one token each


def words(count: int) -> str:
    return " ".join((WORDS * count)[:count])


def test_what_fits_is_the_key_of_the_paper(tokenizer):
    question, history = words(150), words(104)  # 254, and two special tokens
    assert goal_and_recent(question, history, tokenizer) == f"{question}\n{history}"
    assert goal_and_recent(words(254), "", tokenizer) == words(254)
    cut = goal_and_recent(f"first {question}", history, tokenizer)
    assert length(tokenizer, cut) == 256 and cut.endswith(f"\n{history}") and cut.startswith("first one")


def test_of_a_long_question_both_ends_and_of_a_long_history_the_recent_one(tokenizer):
    question, history = words(200), words(1000)
    first, last, recent = goal_and_recent(question, history, tokenizer).split("\n")
    assert (first, last) == (" ".join(question.split()[:32]), " ".join(question.split()[-32:]))
    assert recent == " ".join(history.split()[-190:])
    first, last, recent = goal_and_recent(question, words(100), tokenizer).split("\n")
    assert (len(first.split()), len(last.split()), recent) == (77, 77, words(100))  # it gets what the history leaves
    assert question.startswith(first) and question.endswith(last)


def test_questions_that_differ_behind_their_rules_have_different_keys(tokenizer):
    rules = "You are a player of Sokoban. Push each of the boxes onto a goal, and never pull. Write your moves as letters. " * 4
    boards = ["+ + + @ $ + X +", "+ X + $ + @ + +"]
    for history in ("", words(400)):
        assert goal_and_recent(rules + boards[0], history, tokenizer) != goal_and_recent(rules + boards[1], history, tokenizer)


def test_a_key_may_be_the_end_of_the_history_alone(tokenizer):
    end = "\n" + " ".join(words(40).split()[-8:])
    assert goal_and_recent(words(10), words(40), tokenizer, recent_tokens=8) == end
    assert goal_and_recent(words(10), "", tokenizer, recent_tokens=8) == words(10)  # the first step has nothing else to go by
    assert length(tokenizer, goal_and_recent(words(300), words(900), tokenizer, recent_tokens=256)) == 256


def test_a_very_long_history_takes_no_longer(tokenizer):
    assert goal_and_recent("q", "word " * 200_000 + "end", tokenizer).endswith(" word end")
    seen = []

    class Counting:
        num_special_tokens_to_add = tokenizer.num_special_tokens_to_add

        def __call__(self, text, **options):
            seen.append(len(text))
            return tokenizer(text, **options)

    goal_and_recent("q", "word " * 200_000, Counting())
    assert max(seen) <= 16_384


@settings(max_examples=60, deadline=None)
@given(question=st.text(max_size=900), history=st.text(max_size=2500))
def test_the_encoder_never_truncates_a_key_of_goal_and_recent(tokenizer, question, history):
    text = goal_and_recent(question, history, tokenizer, max_tokens=128)
    assert length(tokenizer, text) <= 128
    ends = [at for at, character in enumerate(text) if character == "\n"]
    whole = [text] if not history else [text[:at] for at in ends if history.endswith(text[at + 1 :])]
    assert any(question == goal or _ends_of(question, goal) for goal in whole)


def _ends_of(question: str, goal: str) -> bool:
    cuts = [at for at, character in enumerate(goal) if character == "\n"]
    return any(question.startswith(goal[:at]) and question.endswith(goal[at + 1 :]) for at in cuts)


def test_words_cut_in_the_middle_stay_within_the_limit(tokenizer):
    # One word of many pieces: cut anywhere, its rest is tokenized into other, maybe more pieces.
    history = "1234567890123" * 7 + " " + "unbelievably" * 8 * 40
    assert length(tokenizer, goal_and_recent("x" * 90, history, tokenizer, 72)) <= 72
    for word in ("uuldeiabbgvi", "rklsbxwtupwu"):  # the end of a question that begins within these is more pieces
        assert length(tokenizer, goal_and_recent(f"{word} " * 60, "", tokenizer, 72)) <= 72


def test_a_limit_without_room_for_a_history_is_refused(tokenizer):
    with pytest.raises(ValueError, match="limit of 66 tokens has no room"):
        goal_and_recent("q", "h", tokenizer, max_tokens=66)


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
