"""The page as a file: what it says, holds and never holds; the command that writes it."""

import json
import re

import pytest
from run_folders import write_trial
from typer.testing import CliRunner, Result

from rapo_rllib.cli.main import app
from rapo_rllib.report.page import write_report

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--"


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)[1])


def poisoned(folder) -> None:
    """Put hostile text wherever models, tools, users and scorers can write."""
    path = folder / "transcripts" / "iteration_00001.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row |= {"question": EVIL, "gold": EVIL, "question_id": EVIL, "end": EVIL, "error": EVIL}
        row["text"] += EVIL
        row["reward_terms"] = {EVIL: 1.0}
        for retrieval in row["retrievals"]:
            retrieval["source"] = EVIL
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_nothing_that_was_written_becomes_markup(tmp_path) -> None:
    folder = write_trial(tmp_path / "<b>run", iterations=1, params={"name": EVIL})
    poisoned(folder)
    write_trial(tmp_path / "other", iterations=1)
    page = write_report(tmp_path).path.read_text()
    assert "alert(1)" in page and "<script>alert" not in page and "<img" not in page and "<b>run" not in page
    assert page.count("<script") == page.count("</script>") == 5
    assert EVIL in json.dumps(data_of(page), ensure_ascii=False)


def test_warnings_stand_on_top_with_what_to_do(tmp_path) -> None:
    folder = write_trial(tmp_path / "a", iterations=5, params={"num_hybrid": 2})
    assert "<ul class=warnings>" not in write_report(folder).path.read_text()
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    for row in rows:
        row["env_runners"]["retrieval_prob"] = 0.5
        row["env_runners"]["retrieval"] |= {"count": 0.0, "queries": 12.0, "empty": 12.0}
        row["env_runners"]["tools"] = {"<b>": {"calls": 4.0, "<i>": 3.0}}
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(tmp_path).path.read_text()
    items = re.search(r"<ul class=warnings>(.*?)</ul>", page)[1]
    assert "a, from iteration 3 on: nothing was retrieved in 3 iterations: nothing suitable was found.</b> relax" in items
    assert "75% of the calls of &lt;b&gt; failed, mostly: &lt;i&gt;" in items


def test_the_page_loads_nothing(tmp_path) -> None:
    page = write_report(write_trial(tmp_path, iterations=2)).path.read_text()
    assert "Content-Security-Policy" in page and "default-src 'none'" in page
    outside = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    assert re.findall(r"https?://[^\s\"']+", outside) == ["http://www.w3.org/2000/svg"]  # a name space, never fetched


def test_lone_surrogates_and_other_letters_survive(tmp_path) -> None:
    folder = write_trial(tmp_path, iterations=1)
    path = folder / "transcripts" / "iteration_00001.jsonl"
    rows = [json.loads(line) | {"question": "half \ud83d, ganz: 猫"} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = data_of(write_report(folder).path.read_text(encoding="utf-8"))
    assert data["trials"][0]["groups"][0]["question"] == "half \ud83d, ganz: 猫"


def test_a_run_that_has_just_begun(tmp_path) -> None:
    folder = write_trial(tmp_path, iterations=0)
    (folder / "result.json").write_text('{"training_iteration": 1, "env_ru')
    page = write_report(folder).path.read_text()
    assert "no result yet" in page and "no transcripts" in page
    assert data_of(page)["trials"][0]["groups"] == []


def test_a_run_that_is_still_going(tmp_path) -> None:
    folder = write_trial(tmp_path, iterations=3)
    for path in (folder / "result.json", folder / "transcripts" / "iteration_00003.jsonl"):
        path.write_bytes(path.read_bytes()[:-40])
    page = write_report(folder).path.read_text()
    (trial,) = data_of(page)["trials"]
    assert trial["curves"]["x"]["iteration"] == [0, 1, 2]
    assert [group["iteration"] for group in trial["groups"]] == [1] * 3 + [2] * 3 + [3] * 3
    assert "running, or interrupted" in page and "could not be read" not in page


def test_the_size_limit_is_kept_and_said(tmp_path) -> None:
    folder = write_trial(tmp_path, iterations=12, questions=6)
    whole, small = write_report(folder, tmp_path / "a.html"), write_report(folder, tmp_path / "b.html", max_mb=0.1)
    assert small.num_bytes < 150_000 < whole.num_bytes and 0 < small.groups < whole.groups == 72
    assert re.search(r"the reader holds \d+ questions, the newest that fit \(--max-mb 0\.1\)", small.path.read_text())
    assert "the reader holds" not in whole.path.read_text()


@pytest.mark.parametrize(
    ("output", "max_mb", "said"), [("none/report.html", 20, "--output .*cannot be written"), (None, 0, "--max-mb 0: must be")]
)
def test_mistakes_name_the_option(tmp_path, output, max_mb, said) -> None:
    folder = write_trial(tmp_path, iterations=1)
    with pytest.raises(ValueError, match=said):
        write_report(folder, output and tmp_path / output, max_mb)


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path) -> None:
    folder, output = write_trial(tmp_path / "a", iterations=1), tmp_path / "page.html"
    output.mkdir()
    with pytest.raises(ValueError, match=r"--output .*page\.html: cannot be written"):
        write_report(folder, output)
    assert sorted(tmp_path.iterdir()) == [folder, output]


def run_report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


def test_the_command_writes_the_page(tmp_path) -> None:
    for p in (0.0, 1.0):
        write_trial(tmp_path / f"p_{p}", iterations=2, params={"retrieval_prob": p})
    done = run_report(str(tmp_path))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{tmp_path / 'report.html'}: 2 trials, 12 questions with trajectories, ")
    page = (tmp_path / "report.html").read_text()
    assert "retrieval_prob=0.0" in page and "retrieval_prob=1.0" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p_0.0", "p_1.0", "report.html"]


def test_the_command_tells_a_mistake_in_one_line(tmp_path) -> None:
    done = run_report(str(tmp_path / "none"))
    assert done.exit_code == 1 and done.stdout == ""
    assert re.fullmatch(r"Error: RUN_DIR .*no such folder.*\n", done.stderr)
