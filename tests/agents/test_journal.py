"""The files of a build: whole after a kill at any byte, and refused where they are of something else."""

import json

import pytest

from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt
from rapo_rllib.agents.journal import Journal
from rapo_rllib.traces.recorded import read_trace_file
from rapo_rllib.types import Question

MADE_OF = {"name": "m", "samples": 2}


def answered(index: int) -> AnsweredQuestion:
    question = Question(f"q{index}", f"Wie groß ist {index}?", "8", ("acht",))
    good = Attempt((f"<python>{index}</python>\n<result>\n8\n</result>\n", "<answer>8</answer>"), 1.0, "answer", num_tokens=9)
    bad = Attempt(("<answer>9</answer>",), 0.0, "error", f"env.step failed after {index}.5 s: oh", num_tokens=4)
    return AnsweredQuestion(question, (good, bad))


def write(folder, indices, **made_of) -> Journal:
    with Journal(folder / "b", MADE_OF | made_of) as journal:
        for index in indices:
            journal.add(answered(index), answered(index).attempts[:1], "solver")
    return journal


def test_what_was_written_is_read(tmp_path):
    write(tmp_path, [0, 1])
    with Journal(tmp_path / "b", MADE_OF) as journal:
        assert journal.finished == {"q0", "q1"}
        experts = list(journal.trajectories())
    totals = journal.totals
    assert (totals.questions, totals.answered, totals.attempts, totals.kept, totals.steps, totals.tokens) == (2, 2, 4, 2, 4, 26)
    assert totals.reward == 2.0 and totals.ends == {"answer": 2, "error": 2}
    assert totals.errors == {"env.step failed after N s: oh": 2}
    assert experts == list(read_trace_file(tmp_path / "b.traces.jsonl"))
    assert experts[0].question == Question("q0", "Wie groß ist 0?", "8", ("acht",), source="solver")
    assert (experts[1].steps, experts[1].reward, experts[1].source) == (answered(1).attempts[0].steps, 1.0, "solver")


def test_cut_at_any_byte_it_goes_on_to_the_same_files(tmp_path):
    (tmp_path / "whole").mkdir()
    write(tmp_path / "whole", range(3))
    files = {name: (tmp_path / "whole" / name).read_bytes() for name in ("b.traces.jsonl", "b.progress.jsonl")}
    ends = [json.loads(line)["traces_bytes"] for line in files["b.progress.jsonl"].splitlines()[1:]]
    progress = files["b.progress.jsonl"]
    for cut in range(0, len(progress) + 1, 7):
        finished = max(progress[:cut].count(b"\n") - 1, 0)
        for traces in {ends[min(finished, 2)], ends[min(finished, 2)] - 5, ends[finished - 1] if finished else 0}:
            folder = tmp_path / f"{cut}-{traces}"
            folder.mkdir()
            (folder / "b.progress.jsonl").write_bytes(progress[:cut])
            (folder / "b.traces.jsonl").write_bytes(files["b.traces.jsonl"][:traces])
            with Journal(folder / "b", MADE_OF) as journal:
                assert journal.finished == {f"q{index}" for index in range(finished)}
                for index in range(finished, 3):
                    journal.add(answered(index), answered(index).attempts[:1], "solver")
            assert {name: (folder / name).read_bytes() for name in files} == files


def test_files_of_another_build_are_refused(tmp_path):
    write(tmp_path, [0])
    with pytest.raises(ValueError, match=r"of another build: samples was 2 and is 16\. Give what it was made with"):
        write(tmp_path, [1], samples=16)
    assert write(tmp_path, []).finished == {"q0"}


def test_one_process_at_a_time(tmp_path):
    with Journal(tmp_path / "b", MADE_OF), pytest.raises(ValueError, match="another process is building with"):
        write(tmp_path, [0])


def test_damage_is_told(tmp_path):
    write(tmp_path, [0])
    traces, progress = tmp_path / "b.traces.jsonl", tmp_path / "b.progress.jsonl"
    whole = traces.read_bytes()
    traces.write_bytes(whole[:-3])
    with pytest.raises(ValueError, match=r"has \d+ bytes, but .* tells of \d+: put the file back"):
        write(tmp_path, [1])
    traces.write_bytes(whole)
    progress.write_bytes(progress.read_bytes() + b"garbage\n")
    with pytest.raises(ValueError, match="is damaged"):
        write(tmp_path, [1])
