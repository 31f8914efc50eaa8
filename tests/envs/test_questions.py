import csv
import gzip
import io
import json
import logging
from pathlib import Path

import pytest

from rapo_rllib.envs.dataset_rows import field_value, question_from_row
from rapo_rllib.envs.questions import Questions

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "so 2 + 2 = 4\n#### 4"}]


MARK = b"\xef\xbb\xbf"
TEXTS = ("a.jsonl", "a.jsonl.gz", "a.json", "a.csv")


def write(path: Path, rows: list, mark: bytes = b"") -> str:
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return str(path)
    if path.suffix == ".csv":
        file = io.StringIO()
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        text = file.getvalue()
    else:
        text = json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
    content = mark + text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@pytest.mark.parametrize(
    ("name", "mark"), [*((name, b"") for name in (*TEXTS, "a.parquet")), *((name, MARK) for name in TEXTS)]
)
def test_every_kind_of_file(tmp_path: Path, name: str, mark: bytes) -> None:
    """A byte order mark is no part of it."""
    found = Questions.questions({"dataset": write(tmp_path / name, ROWS, mark)}, "train")
    assert [(q.id, q.text, q.answer) for q in found] == [("a-1", "1 + 1?", "2"), ("a-2", "2 + 2?", "4")]


@pytest.mark.parametrize(
    ("row", "text", "answer", "aliases"),
    [
        ({"question": "Q", "answer": "a\n#### 1,234"}, "Q", "1234", ()),
        ({"problem": "Q", "answer": "\\frac{1}{2}", "solution": "s"}, "Q", "\\frac{1}{2}", ()),
        ({"question": "Q", "answer": 8}, "Q", "8", ()),
        ({"question": "Q", "answer": ["A", "B", "A"], "aliases": ["C"]}, "Q", "A", ("B", "A", "C")),
        ({"question": "Q", "golden_answers": ["A"]}, "Q", "A", ()),
        # Search-R1's
        (
            {"question": "Q", "golden_answers": ["A", "B"], "reward_model": {"ground_truth": {"target": ["A"]}}},
            "Q",
            "A",
            ("B",),
        ),
        ({"question": "Q", "golden_answers": None, "reward_model": {"ground_truth": {"target": ["A", "B"]}}}, "Q", "A", ("B",)),
        # of several fields the first that holds something
        ({"question": "Q", "answer": {"value": "x"}, "answers": [None, " "], "golden_answers": ["A"]}, "Q", "A", ()),
        ({"question": "Q", "reward_model": {"ground_truth": ""}, "answer": float("nan"), "answers": ["A"]}, "Q", "A", ()),
        ({"extra_info": {"question": " "}, "problem": ["P"], "question": "Q", "answer": "A"}, "Q", "A", ()),
        ({"question": "", "messages": [], "prompt": [{"role": "user", "content": "P"}], "answer": "A"}, "P", "A", ()),
        (
            {
                "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "P"}],
                "reward_model": {"ground_truth": "A"},
                "extra_info": {"question": "Q"},
            },
            *("Q", "A", ()),
        ),
        (
            {
                "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "P"}],
                "reward_model": {"ground_truth": "A"},
            },
            *("P", "A", ()),
        ),
    ],
)
def test_known_formats(row: dict, text: str, answer: str, aliases: tuple) -> None:
    question = question_from_row(row, "f, row 1", "f-1")
    assert (question.text, question.answer, question.aliases, question.source) == (text, answer, aliases, "f")


def test_named_fields() -> None:
    row = {"a": {"b": "Q"}, "c.d": "A", "question": "other", "answer": "other"}
    question = question_from_row(row, "f, row 1", "f-1", "a.b", "c.d")
    assert (question.text, question.answer) == ("Q", "A")
    assert field_value({"a": {"b": {"c": 1}}}, "a.b.c") == 1
    assert field_value({"a": 1}, "a.b") is None


@pytest.mark.parametrize(
    ("row", "fields", "message"),
    [
        ({"question": "Q"}, {}, "no answer in .*answer.*; fields of this row: question. Name one in env_config.answer_field"),
        ({"question": "Q", "answer": " "}, {}, "no answer"),
        ({"question": "Q", "answer": None}, {}, "no answer"),
        ({"question": "Q", "answer": float("nan")}, {}, "no answer"),
        ({"answer": "A"}, {}, "no question in .*Name one in env_config.question_field"),
        ({"question": "", "answer": "A"}, {}, "no question"),
        ({"question": "Q", "answer": "A"}, {"answer_field": "gold"}, "no answer in gold; fields of this row"),
        ({"question": "Q", "answer": "A"}, {"question_field": "x.y"}, "no question in x.y; fields of this row"),
    ],
)
def test_a_row_without_question_or_answer_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: dict, fields: dict, message: str
) -> None:
    path = write(tmp_path / "bad.jsonl", [{**ROWS[0], "gold": "1", "x": {"y": "z"}}, row])
    with pytest.raises(ValueError, match=rf"{path}, row 2: {message}"):
        Questions.questions({"dataset": path, **fields}, "train")
    with caplog.at_level(logging.WARNING):
        found = Questions.questions({"dataset": path, "skip_bad_rows": True, **fields}, "train")
    assert [q.id for q in found] == ["bad-1"]
    assert "left out" in caplog.text and "row 2" in caplog.text
    assert len(Questions.questions({"dataset": path, "limit_train": 1, **fields}, "train")) == 1


def test_splits(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", ROWS)
    test = write(tmp_path / "test.jsonl", [{"question": "T", "answer": "t"}] * 3)
    config = {"dataset": train, "test_dataset": test, "limit_train": 1, "limit_test": 2}
    assert [q.id for q in Questions.questions(config, "train")] == ["train-1"]
    assert [q.id for q in Questions.questions(config, "test")] == ["test-1", "test-2"]
    with pytest.raises(ValueError, match=r"env_config.test_dataset = None: .*train.jsonl is one file"):
        Questions.questions({"dataset": train}, "test")


def test_test_questions_of_several_data_sets_take_turns(tmp_path: Path, shared_data: Path) -> None:
    first = write(tmp_path / "first.jsonl", ROWS)
    math500 = f"math500={shared_data / 'eval' / 'math500.jsonl'}"
    config = {"dataset": first, "test_dataset": [first, math500], "limit_test": 3}
    found = Questions.questions(config, "test")
    assert [q.id for q in found] == ["first-1", "math500-1", "first-2", "math500-2", "math500-3"]
    assert [q.benchmark for q in found] == ["first", "math500", "first", "math500", "math500"]
    assert {q.benchmark for q in Questions.questions(config, "train")} == {""}
    empty = write(tmp_path / "empty.jsonl", [])
    with pytest.raises(ValueError, match=r"env_config.test_dataset = 'empty': holds no questions"):
        Questions.questions({"dataset": first, "test_dataset": [first, empty]}, "test")


def test_a_folder_is_read_by_hugging_face_datasets(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    write(folder / "train.jsonl", ROWS)
    write(folder / "test.jsonl", ROWS[1:])
    assert [q.answer for q in Questions.questions({"dataset": str(folder)}, "train")] == ["2", "4"]
    assert [(q.id, q.answer) for q in Questions.questions({"dataset": str(folder)}, "test")] == [("sums-test-1", "4")]
    with pytest.raises(ValueError, match=r"env_config.dataset = .*cannot load .*split 'dev'"):
        Questions.questions({"dataset": str(folder), "test_split": "dev"}, "test")


def test_a_table_with_commas_that_nothing_quotes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sums.csv").write_text("question,answer\n1 + 1?,2\nWhat is 1,000 + 5?,1005\n")
    with pytest.raises(ValueError, match="cannot be read after row 1: more cells than the header has"):
        Questions.questions({"dataset": str(tmp_path / "sums.csv")}, "train")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    assert len(Questions.questions({"dataset": path}, "train")) == 2
    write(tmp_path / "a.jsonl", ROWS * 2)
    assert len(Questions.questions({"dataset": path}, "train")) == 4


def test_a_changed_file_of_a_folder_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for times in (1, 2):
        write(tmp_path / "data" / "train.jsonl", ROWS * times)
        assert len(Questions.questions({"dataset": str(tmp_path)}, "train")) == 2 * times


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "env_config.dataset = '': name a data file or a Hugging Face id"),
        ({"dataset": "nowhere.jsonl"}, "env_config.dataset = 'nowhere.jsonl': there is no such file; correct the path"),
        ({"dataset": "no file"}, "env_config.dataset = 'no file': neither a file ending in .jsonl"),
        ({"dataset": "a.jsonl", "limit_train": 0}, "env_config.limit_train = 0"),
        ({"dataset": 3}, "env_config.dataset = 3: must be a text"),
        ({"dataset": "a.jsonl", "test_dataset": []}, r"env_config.test_dataset = \(\): must be a text or a list of texts"),
        (
            {"dataset": "a.jsonl", "test_dataset": ["b.jsonl", 3]},
            r"env_config.test_dataset = \['b.jsonl', 3\]: must be a text or",
        ),
        ({"dataset": "a.jsonl", "test_dataset": ["b/t.csv", "c/t.csv"]}, "two are called 't': rename one, or name a copy"),
        ({"dataset": "a.jsonl", "test_dataset": ["gsm8k", "gsm8k=a.csv"]}, "two are called 'gsm8k'"),
        ({"datset": "a.jsonl"}, r"did you mean 'env_config.dataset'\?"),
        ({"dataset": "a.jsonl", "skip_bad_rows": "no"}, "env_config.skip_bad_rows = 'no'"),
    ],
)
def test_wrong_keys_are_named(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Questions.questions(config, "train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"question": "Q", "answer": "A"}\n{', "cannot be read after row 1"),
        ("a.jsonl", b"[1]\n", "row 1 is list, not an object"),
        ("a.jsonl.gz", b"no gzip", "cannot be read after row 0"),
        ("a.json", b"{}", "expected a list of objects, got dict"),
        ("a.parquet", b"no parquet", "cannot be read after row 0"),
        ("a.jsonl", b"\xff\xfe", "cannot be read after row 0"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        Questions.questions({"dataset": str(tmp_path / name)}, "train")


@pytest.mark.process
def test_real_gsm8k(shared_data: Path) -> None:
    config = {
        "dataset": str(shared_data / "math" / "gsm8k_train.jsonl.gz"),
        "test_dataset": str(shared_data / "math" / "gsm8k_test.jsonl.gz"),
    }
    train, test = Questions.questions(config, "train"), Questions.questions(config, "test")
    assert (len(train), len(test)) == (7473, 1319)
    assert train[0].text.startswith("Natalia sold clips") and train[0].answer == "72"
    assert test[0].answer == "18"
    assert all(q.answer.lstrip("-").replace(".", "").isdigit() for q in (*train, *test))
    env = Questions(config)
    for question in train[:50]:
        text, _ = env.reset(options={"question": question})
        assert env.observation_space.contains(text)
        _, reward, terminated, _, info = env.step(f"<answer>\\boxed{{{question.answer}}}</answer>")
        assert (reward, terminated, info["format_ok"]) == (1.0, True, True)


@pytest.mark.process
def test_real_math_and_the_papers_training_set(shared_data: Path) -> None:
    # both hold rows without an answer: 2 of 7,500 and 1 of 10,000
    math = {"dataset": str(shared_data / "math" / "math_train.jsonl.gz")}
    with pytest.raises(ValueError, match=r"row 5342: no answer .*skip_bad_rows: true"):
        Questions.questions(math, "train")
    assert len(Questions.questions({**math, "skip_bad_rows": True}, "train")) == 7498
    paper = {"dataset": str(shared_data / "train" / "train_10k.parquet")}
    with pytest.raises(ValueError, match="row 5275: no answer"):
        Questions.questions(paper, "train")
    found = Questions.questions({**paper, "skip_bad_rows": True}, "train")
    assert len(found) == 9999
    assert found[0].text.startswith("Triangle  $ABC$") and found[0].answer == "3\\sqrt{3} - 6"
    assert {q.source for q in found} == {"train_10k/math", "train_10k/qa"}
    env = Questions({**paper, "skip_bad_rows": True})
    qa = next(q for q in found if q.source == "train_10k/qa" and len(q.answer.split()) == 3)
    for question, answer, reward in ((qa, qa.answer, 1.0), (found[0], "-6 + 3\\sqrt{3}", 1.0), (found[0], "3\\sqrt{3}", 0.0)):
        env.reset(options={"question": question})
        assert env.step(f"<answer>\\boxed{{{answer}}}</answer>")[1] == reward


def test_an_expert_needs_traces(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"env_config.traces = None: name a .jsonl"):
        Questions.expert_trajectories({"dataset": path})
