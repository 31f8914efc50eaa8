"""Named benchmarks: every entry is read in the form of its publisher and in that of local copies; what is missing is told."""

import json
from pathlib import Path

import pytest

from rapo_rllib.envs.benchmarks import BENCHMARKS, benchmark_questions, split_name
from rapo_rllib.envs.questions import Questions
from rapo_rllib.types import Question

MATHS = ["gsm8k", "math", "math500", "aime24", "aime25"]
WORDS = ["webwalkerqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "simpleqa", "gaia"]
ASKED = [*MATHS, *WORDS]


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(name: str, path: str, **options) -> tuple[Question, ...]:
    return benchmark_questions(BENCHMARKS[name], path, **options)


@pytest.mark.parametrize(
    ("name", "row", "answer", "aliases"),
    [
        ("gsm8k", {"question": "Q", "answer": "2 + 3 = 5\n#### 5"}, "5", ()),
        ("math", {"problem": "Q", "solution": "So $x = \\boxed{\\frac{1}{2}}$.", "level": "Level 5"}, "\\frac{1}{2}", ()),
        ("math500", {"problem": "Q", "solution": "no", "answer": "p - q"}, "p - q", ()),
        ("aime24", {"id": 60, "problem": "Q", "solution": "no", "answer": "204"}, "204", ()),
        ("aime25", {"problem": "Q", "answer": "70", "id": "0"}, "70", ()),
        ("webwalkerqa", {"question": "Q", "answer": "A", "root_url": "https://x.org", "info": {"hop": "multi"}}, "A", ()),
        ("hotpotqa", {"id": "5", "question": "Q", "answer": "A", "context": {"title": []}}, "A", ()),
        ("2wikimultihopqa", {"id": "dev_0", "question": "Q", "golden_answers": ["A", "B"], "metadata": {}}, "A", ("B",)),
        ("musique", {"question": "Q", "answer": "A", "answer_aliases": ["B", "C"], "answerable": True}, "A", ("B", "C")),
        ("bamboogle", {"id": "test_0", "question": "Q", "golden_answers": ["A"]}, "A", ()),
        ("simpleqa", {"metadata": "{}", "problem": "Q", "answer": "A"}, "A", ()),
        ("gaia", {"task_id": "c6", "Question": "Q", "Level": 1, "Final answer": "A", "file_name": ""}, "A", ()),
        ("simpleqa", {"question": "Q", "answer": ["A", "B"]}, "A", ("B",)),  # other field names in a local copy
        ("simpleqa", {"problem": " ", "question": "Q", "answer": "", "golden_answers": ["A"]}, "A", ()),  # which hold nothing
        ("musique", {"question": "Q", "answer": "A", "answer_aliases": [], "aliases": ["B"]}, "A", ("B",)),
        ("gaia", {"question": "Q", "answer": "A"}, "A", ()),
    ],
)
def test_rows_as_they_are_published(tmp_path: Path, name: str, row: dict, answer: str, aliases: tuple) -> None:
    (question,) = read(name, write(tmp_path / "rows.jsonl", row))
    assert (question.id, question.text, question.answer, question.aliases) == (f"{name}-1", "Q", answer, aliases)
    assert question.source == f"{name}/{BENCHMARKS[name].scorer}"


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("math500", "eval/math500.jsonl", 500),
        ("hotpotqa", "eval/hotpotqa.jsonl", 200),
        ("2wikimultihopqa", "eval/2wiki.jsonl", 200),
        ("simpleqa", "eval/SimpleQA.jsonl", 500),
        ("gsm8k", "math/gsm8k_test.jsonl.gz", 1319),
        ("hotpotqa", "qa_ctx/hotpotqa_ctx.jsonl.gz", 1768),
    ],
)
def test_real_copies(shared_data: Path, name: str, file: str, count: int) -> None:
    found = read(name, str(shared_data / file))
    assert len(found) == count and all(question.text and question.answer for question in found)
    assert len({question.id for question in found}) == count
    assert [q.text for q in read(name, str(shared_data / file), limit=3)] == [q.text for q in found[:3]]


def test_the_answer_of_a_worked_solution_is_the_published_one(shared_data: Path) -> None:
    path = shared_data / "math" / "math_train.jsonl.gz"
    plain = Questions.questions({"dataset": str(path), "limit_train": 2000}, "train")
    boxed = read("math", str(path), split="train", limit=2000)
    pairs = [(a.answer, b.answer) for a, b in zip(boxed, plain, strict=True) if a.answer != b.answer]
    assert pairs == [("17", "{17}.")]  # where the published one is wrong


def test_a_solution_without_an_answer_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"problem": "Q", "solution": text} for text in ("It is 3.", "It is $\\boxed 4$.")]
    assert [question.answer for question in read("math", write(tmp_path / "math.jsonl", *rows))] == ["4"]
    assert "left out 1 questions" in caplog.text


def hub_folder(folder: Path, configs: dict[str, dict[str, str]]) -> str:
    """What ``hf download`` writes of a data set with several configurations: {configuration: {split: question}}."""
    declared = [{"config_name": c, "data_files": [{"split": s, "path": f"{c}/{s}.*"} for s in configs[c]]} for c in configs]
    for config, splits in configs.items():
        (folder / config).mkdir(parents=True)
        for split, question in splits.items():
            write(folder / config / f"{split}.jsonl", {"question": question, "answer": "It is <<2+3=5>>5\n#### 5"})
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(declared)}\n---\n# A data set\n")
    return str(folder)


def test_a_folder_from_the_hub_is_read_in_the_configuration_that_is_meant(tmp_path: Path) -> None:
    splits = {"train": "to learn from", "test": "asked"}
    folder = hub_folder(tmp_path / "gsm8k", {"main": splits, "socratic": {"train": "other", "test": "other"}})
    assert [question.text for question in read("gsm8k", folder)] == ["asked"]
    assert [question.text for question in read("gsm8k", folder, split="train")] == ["to learn from"]
    (annotated,) = Questions.expert_trajectories({"dataset": f"gsm8k={folder}", "traces": "annotations"})
    assert annotated.question.text == "to learn from"
    again = hub_folder(tmp_path / "other" / "gsm8k", {"main": {**splits, "test": "newer"}, "socratic": splits})
    assert [question.text for question in read("gsm8k", again)] == ["newer"]
    with pytest.raises(ValueError, match=r"hotpotqa = .*Config name is missing(.|\n)*'main', 'socratic'(.|\n)*To obtain it"):
        read("hotpotqa", folder)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"test.jsonl": '{"question": "Q", "answer": "1"}\n{"question": '}, "JSON parse error"),
        ({"copy.py": "import datasets\n"}, "Dataset scripts are no longer supported"),
        ({}, "doesn't contain any data files"),
        ({"rows.jsonl": '{"question": "Q", "answer": "1"}\n'}, r"Bad split: test\. Available splits: .*train"),
    ],
)
def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, files: dict[str, str], said: str) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(
        ValueError, match=rf"benchmark gsm8k = '{folder}': cannot load (.|\n)*{said}(.|\n)*\. To obtain it: .*gsm8k=PATH"
    ):
        read("gsm8k", str(folder))


def test_questions_with_a_file_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"Question": f"Q{i}", "Final answer": "A", "file_name": "a.xlsx" if i == 1 else ""} for i in range(3)]
    assert [question.text for question in read("gaia", write(tmp_path / "gaia.jsonl", *rows))] == ["Q0", "Q2"]
    assert "gaia: left out 1 questions that come with a file or have no final answer" in caplog.text


@pytest.mark.parametrize("name", ASKED)
def test_missing_data_says_how_to_obtain_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"benchmark '?{name}'?.*To obtain it: .*{name}=PATH\. Licence: ") as error:
        benchmark_questions(BENCHMARKS[name], None)  # offline, as the tests run
    assert BENCHMARKS[name].hub_id in str(error.value)
    with pytest.raises(ValueError, match=rf"{name} = '.*gone\.jsonl': there is no such file.*To obtain it"):
        read(name, str(tmp_path / "gone.jsonl"))


def test_a_job_names_a_benchmark(shared_data: Path) -> None:
    copy = f"math500={shared_data / 'eval' / 'math500.jsonl'}"
    env_config = {"dataset": str(shared_data / "math" / "math_train.jsonl.gz"), "test_dataset": copy, "limit_test": 20}
    found = Questions.questions(env_config, "test")
    assert [question.id for question in found] == [f"math500-{i}" for i in range(1, 21)]
    assert len(Questions.questions({**env_config, "limit_train": 5}, "train")) == 5
    with pytest.raises(ValueError, match="'math500' has no questions to train on"):
        Questions.questions({"dataset": copy}, "train")
    gsm8k = f"gsm8k={shared_data / 'math' / 'gsm8k_train.jsonl.gz'}"
    annotated = Questions.expert_trajectories({"dataset": gsm8k, "traces": "annotations", "limit_train": 3})
    assert "<python>print(48/2)</python>" in next(annotated).steps[0]


@pytest.mark.parametrize(
    ("source", "answer", "gold", "reward"),
    [("hotpotqa/qa", "New York", "New York City", 0.8), ("math500/math", "\\boxed{0.5}", "\\frac{1}{2}", 1.0)],
)
def test_the_scorer_of_a_benchmark(source: str, answer: str, gold: str, reward: float) -> None:
    env = Questions({"dataset": "math500", "tools": []})
    env.reset(options={"question": Question("q", "Q", gold, source=source)})
    _, found, *_ = env.step(f"<answer>{answer}</answer>")
    assert found == pytest.approx(reward)


def test_other_names_are_no_benchmarks() -> None:
    assert split_name("openai/gsm8k") is split_name("./math") is split_name("a=b.jsonl") is None
    assert split_name("gsm8k") == (BENCHMARKS["gsm8k"], None)
    assert split_name("gsm8k=a=b.jsonl") == (BENCHMARKS["gsm8k"], "a=b.jsonl")
