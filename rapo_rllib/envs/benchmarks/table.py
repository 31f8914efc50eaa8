"""Table of the named benchmarks: place of publication, reader of rows, scorer of answers."""

from __future__ import annotations

from dataclasses import dataclass

MATHS, WORDS = "math", "qa"  # scorers


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. A local copy may have its fields, or any that ``rapo/questions`` knows without being told."""

    name: str
    hub_id: str  # Hugging Face id
    split: str  # whose questions are asked
    scorer: str  # MATHS, or WORDS (token F1; correct: exact match)
    licence: str  # as its authors give it; the user's to observe
    config: str | None = None  # of the Hugging Face data set
    train_split: str | None = None  # None: nothing to train on
    question_field: str = "question"
    answer_field: str = "answer"
    boxed: bool = False  # the answer field is a worked solution, whose last \\boxed{} is the answer
    attachment_field: str | None = None  # rows that have something there need a file, which no tool here opens: left out
    own: bool = False  # a user's own file

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools that it is meant to be solved with, where nothing else is said: search needs a corpus that is named."""
        return ("python",) if self.scorer == MATHS else ()


_MAA = "problems of the Mathematical Association of America"
_FLASHRAG, _GOLDEN = "RUC-NLPIR/FlashRAG_datasets", "golden_answers"

_ALL = (
    Benchmark("gsm8k", "openai/gsm8k", "test", MATHS, "MIT", "main", "train"),
    Benchmark(
        "math", "DigitalLearningGmbH/MATH-lighteval", "test", MATHS, "MIT", None, "train", "problem", "solution", boxed=True
    ),
    Benchmark("math500", "HuggingFaceH4/MATH-500", "test", MATHS, "MIT", question_field="problem"),
    Benchmark("aime24", "HuggingFaceH4/aime_2024", "train", MATHS, _MAA, question_field="problem"),
    Benchmark("aime25", "math-ai/aime25", "test", MATHS, _MAA, question_field="problem"),
    Benchmark("webwalkerqa", "callanwu/WebWalkerQA", "main", WORDS, "Apache-2.0"),
    Benchmark("hotpotqa", "hotpotqa/hotpot_qa", "validation", WORDS, "CC BY-SA 4.0", "distractor", "train"),
    Benchmark("2wikimultihopqa", _FLASHRAG, "dev", WORDS, "Apache-2.0", "2wikimultihopqa", "train", answer_field=_GOLDEN),
    Benchmark("musique", "dgslibisey/MuSiQue", "validation", WORDS, "CC BY 4.0", None, "train"),
    Benchmark("bamboogle", _FLASHRAG, "test", WORDS, "MIT", "bamboogle", answer_field=_GOLDEN),
    Benchmark("simpleqa", "basicv8vc/SimpleQA", "test", WORDS, "MIT", question_field="problem"),
    Benchmark(
        "gaia",
        "gaia-benchmark/GAIA",
        "validation",
        WORDS,
        "terms on its page; it must not be published again",
        "2023_all",
        question_field="Question",
        answer_field="Final answer",
        attachment_field="file_name",
    ),
)

BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}


def own_benchmark(name: str, in_words: bool) -> Benchmark:
    """Make a benchmark of a user's own questions; the field ``ability`` may choose the scorer."""
    return Benchmark(name, "", "test", WORDS if in_words else MATHS, "", own=True)
