"""``rllib evaluate`` on real questions with endpoints over real HTTP."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import forked
from local_service import Reply, Request, Service, local_service
from sums import SUM, Solver, write_sums
from typer.testing import CliRunner

from rapo_rllib.cli.main import app


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["evaluate", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def read(folder: Path, name: str = "gsm8k", model: str = "solver") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Numbers of one model, and all transcripts."""
    results = json.loads((folder / "results.json").read_text())
    rows = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]
    return results["benchmarks"][name]["models"][model], rows


def of_solver(service: Service) -> str:
    return f"{service.url}/v1#solver"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_endpoint_solves_with_tools(folder: Path) -> None:
    data = f"gsm8k={write_sums(folder, 6)}"
    with local_service(Solver()) as server:
        output = run(of_solver(server), "-b", data, "--samples", "4", "--seed", "1", "--temperature", "0.7")
    numbers, rows = read(folder / "evaluation")
    assert len(server.requests) == 48 and {request.json["temperature"] for request in server.requests} == {0.7}
    assert (numbers["questions"], numbers["samples"], numbers["failed"], len(rows)) == (6, 4, 0, 24)
    right = [row["correct"] for row in rows]
    assert 0 < sum(right) < 24 and numbers["accuracy"] == pytest.approx(sum(right) / 24)
    assert right == [row["predicted"] in row["gold"] for row in rows]
    assert numbers["accuracy_ci"][0] <= numbers["accuracy"] <= numbers["accuracy_ci"][1]
    assert numbers["pass_at_k"]["1"] == pytest.approx(numbers["accuracy"]) and set(numbers["pass_at_k"]) == {"1", "2", "4"}
    assert (numbers["tool_calls"], numbers["tokens"], numbers["format_rate"]) == (1.0, 24.0, 1.0)
    assert numbers["seconds"] > 0 and all(row["tool_calls"] == 1 for row in rows)
    assert f"{numbers['accuracy']:.3f}" in output and "results.json" in output
    assert "<result>" in rows[0]["steps"][0] and rows[0]["steps"][1].endswith("</answer>")
    assert "holds the results of another evaluation" in run(of_solver(server), "-b", data, "--max-questions", "1", status=1)


def answering(answers: dict[str, str]) -> Callable[[Request], Reply]:
    """An endpoint that knows some questions."""

    def answer(request: Request) -> Reply:
        asked = request.json["messages"][-1]["content"]
        known = next((found for question, found in answers.items() if question in asked), "no idea")
        return Reply({"choices": [{"message": {"content": f"<answer>\\boxed{{{known}}}"}, "finish_reason": "stop"}]})

    return answer


def test_two_models_on_real_benchmarks(folder: Path, shared_data: Path) -> None:
    files = {"hotpotqa": "hotpotqa.jsonl", "math500": "math500.jsonl"}
    rows = {name: [json.loads(line) for line in (shared_data / "eval" / file).open()][:6] for name, file in files.items()}
    words = {row["question"]: row["answer"][0] for row in rows["hotpotqa"]}
    maths = {row["question"]: row["answer"] for row in rows["math500"]}
    half = {**dict(list(words.items())[:3]), rows["hotpotqa"][4]["question"]: f"{rows['hotpotqa'][4]['answer'][0]} indeed"}
    data = ",".join(f"{name}={shared_data / 'eval' / file}" for name, file in files.items())
    with local_service(answering(half)) as weak, local_service(answering(words | maths)) as strong:
        models = [f"{weak.url}/v1#weak", f"{strong.url}/v1#strong"]
        output = run(*models, "-b", data, "--max-questions", "6", "-o", "out")
    first, transcripts = read(folder / "out", "hotpotqa", "weak")
    second, _ = read(folder / "out", "hotpotqa", "strong")
    assert len(transcripts) == 24 and {row["model"] for row in transcripts} == {"weak", "strong"}
    assert first["accuracy"] == first["exact_match"] == 0.5 and 0.5 < first["f1"] < 0.7
    assert second["accuracy"] == second["f1"] == 1.0 and second["accuracy_ci"] == [1.0, 1.0]
    assert second["to_first"]["difference"] == 0.5 and second["to_first"]["difference_ci"][0] >= 0
    assert read(folder / "out", "math500", "strong")[0]["accuracy"] == 1.0
    assert "f1" not in read(folder / "out", "math500", "weak")[0]
    assert read(folder / "out", "math500", "weak")[0]["accuracy"] == 0.0
    assert "hotpotqa: strong to the first: +0.500" in output
    tools = {"hotpotqa": "calls Python" in str(weak.requests[0].json), "math500": "python" in str(weak.requests[-1].json)}
    assert tools == {"hotpotqa": False, "math500": True}


def test_attempts_that_fail_are_told(folder: Path) -> None:
    data = f"gsm8k={write_sums(folder, 4)}"

    def broken(number: int) -> Reply | None:
        return Reply({"error": "bad request"}, 400) if number == 1 else None

    with local_service(Solver(broken)) as server:
        output = run(of_solver(server), "-b", data, "--seed", "1", "--agent-concurrency", "1")
        assert "1 of 4 attempts failed and count as wrong: agent answers with status N" in " ".join(output.split())
        assert read(folder / "evaluation")[0]["failed"] == 1
    with local_service(lambda _: Reply({"error": "no"}, 400)) as server:
        output = run(of_solver(server), "-b", data, "-o", "none", status=1)
    assert (
        "not one attempt at 4 questions came about: agent answers" in output and not (folder / "none" / "results.json").exists()
    )


def test_a_killed_evaluation_asks_only_the_rest(folder: Path) -> None:
    count = 8
    solver = Solver(lambda number: time.sleep(0.2))
    options = ["-b", f"gsm8k={write_sums(folder, count)}", "--agent-concurrency", "1"]
    transcripts = folder / "evaluation" / "transcripts.jsonl"
    with local_service(solver) as server:
        process = forked(folder, "evaluate", of_solver(server), *options)
        while not (transcripts.exists() and transcripts.read_bytes().count(b"\n") >= 3):
            assert process.is_alive()
            time.sleep(0.02)
        process.kill()
        process.join()
        finished = {json.loads(line)["question"] for line in transcripts.read_bytes().split(b"\n")[:-1]}
        time.sleep(0.5)  # what it had asked last is answered
        asked_before = solver.asked.copy()
        assert 3 <= len(finished) < count
        for other in (("--temperature", "0.5"), ("--agent-extra", '{"top_p": 0.1}'), ("--set", "max_steps=9")):
            assert "settings.json is of another command" in run(of_solver(server), *options, *other, status=1)
        output = run(of_solver(server), *options)
    assert "8/8" in output and f"{len(finished)} were there before" in output
    rest = {
        name: 1 for index in range(count) if (name := f"sums-{index + 1}") and f"What is {index} + {index + 3}?" not in finished
    }
    assert solver.asked - asked_before == rest
    numbers, rows = read(folder / "evaluation")
    assert (numbers["questions"], numbers["accuracy"], numbers["failed"], numbers["tokens"]) == (count, 1.0, 0, 24.0)
    assert len({row["question_id"] for row in rows}) == len(rows) == count


def test_questions_whose_endpoint_was_down_are_asked_again(folder: Path) -> None:
    down = [True]
    solver = Solver(lambda number: Reply({"error": "no"}, 400) if down[0] else None)
    options = ["-b", f"gsm8k={write_sums(folder, 4)}"]
    with local_service(solver) as server:
        assert "not one attempt at 4 questions came about" in run(of_solver(server), *options, status=1)
        down[0] = False
        run(of_solver(server), *options)
    numbers, rows = read(folder / "evaluation")
    assert (numbers["accuracy"], numbers["failed"], len(rows)) == (1.0, 0, 4)


def test_settings_of_the_environment_are_used_and_written(folder: Path) -> None:
    options = ["-b", f"gsm8k={write_sums(folder, 2)}", "--set", "env_config.max_tool_calls=0"]
    with local_service(Solver()) as server:
        run(of_solver(server), *options, "--set", "env_config.reward.correct=3")
    numbers, rows = read(folder / "evaluation")
    assert [row["end"] for row in rows] == ["tool_limit"] * 2 and numbers["temperature"] == 0.0
    settings = json.loads((folder / "evaluation" / "results.json").read_text())["settings"]["solver"]
    assert settings["env_config"] == {"max_tool_calls": 0, "reward": {"correct": 3}, "scorer": "auto"}
    assert (settings["temperature"], settings["max_response_tokens"], settings["tools"]) == (0.0, 4096, {"gsm8k": ["python"]})
    assert settings == json.loads((folder / "evaluation" / "settings.json").read_text())["models"]["solver"]


def plain(text: Callable[[int], str]) -> Callable[[Request], Reply]:
    """An endpoint that knows nothing of tags; ``text`` says a sum in its own way."""

    def answer(request: Request) -> Reply:
        a, b = map(int, SUM.findall(request.json["messages"][-1]["content"])[-1])
        return Reply({"choices": [{"message": {"content": text(a + b)}, "finish_reason": "stop"}]})

    return answer


@pytest.mark.parametrize(
    ("said", "boxed"),
    [
        (lambda total: f"{total}", False),
        (lambda total: f"We add them.\n\n**Answer:** {total}", False),
        (lambda total: f"1 and 2 make 3.\nThe answer is **{total}**. I checked it.", False),
        (lambda total: f"<think>It may be 99.</think>So in the end she has ${total} left.", False),
        (lambda total: f"The sum is $\\boxed{{{total}}}$, since both are whole numbers.", True),
        (lambda total: f"<answer>\\boxed{{{total}}}</answer>", True),
    ],
)
def test_plain_answers_are_read_as_they_are_given(folder: Path, said: Callable[[int], str], boxed: bool) -> None:
    write_sums(folder, 3)
    tagged = "<answer>" in said(1)
    with local_service(plain(said)) as server:
        for name, right in (("any", True), ("boxed", boxed), ("tagged", tagged)):
            output = run(of_solver(server), "-b", "mine=sums.jsonl", "--answers", name, "-o", name)
            numbers, rows = read(folder / name, "mine")
            assert numbers["accuracy"] == float(right), output
            assert [row["predicted"] is not None for row in rows] == [right] * 3
            assert numbers["unanswered"] == ({} if right else {"eos": 3})
            place = {"tagged": "<answer>", "boxed": "a box", "any": ""}[name]
            told = (
                f"0 of 3 right: 3 of 3 attempts have no answer in {place} (ended by eos 3); --answers any reads it as the model"
            )
            assert (told in " ".join(output.split())) == (not right)


def test_nothing_right_though_all_have_an_answer_is_told(folder: Path) -> None:
    write_sums(folder, 2)
    with local_service(plain(lambda total: f"<answer>\\boxed{{{total + 1}}}</answer>")) as server:
        output = run(of_solver(server), "-b", "sums.jsonl")
    assert "0 of 2 right, and all have an answer: compare `predicted` with `gold`" in " ".join(output.split())


def test_a_cut_off_text_has_no_answer_without_tags(folder: Path) -> None:
    write_sums(folder, 1)
    cut = {"choices": [{"message": {"content": "3 and then"}, "finish_reason": "length"}]}
    with local_service(lambda _: Reply(cut)) as server:
        output = run(of_solver(server), "-b", "sums.jsonl", "--answers", "any")
    numbers, (row,) = read(folder / "evaluation", "sums")
    assert (row["correct"], row["predicted"], numbers["unanswered"]) == (False, None, {"length": 1})
    assert "0 of 1 right: 1 of 1 attempts have no answer (ended by length 1)" in output


def test_own_data_by_path_in_words_and_beside_benchmarks(folder: Path) -> None:
    rows = [
        {"question": "Capital of France?", "answer": ["Paris", "City of Light"]},
        {"question": "Of Chad?", "answer": "N'Djamena"},
    ]
    (folder / "Capitals.v2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = [json.dumps(row | {"ability": "qa"}) + "\n" for row in rows]
    (folder / "said.jsonl").write_text("".join(both))
    data = ["-b", f"gsm8k={write_sums(folder, 1)},mine=said.jsonl"]
    reply = Reply({"choices": [{"message": {"content": "It is a city.\nThe city of light."}, "finish_reason": "stop"}]})
    with local_service(lambda _: reply) as server:
        run(of_solver(server), *data, "--answers", "any")
        run(of_solver(server), "-b", "./Capitals.v2.jsonl", "--set", "env_config.scorer=qa", "--answers", "any", "-o", "words")
    results = json.loads((folder / "evaluation" / "results.json").read_text())["benchmarks"]
    assert set(results) == {"gsm8k", "mine"} and "f1" not in results["gsm8k"]["models"]["solver"]
    for numbers, _ in (read(folder / "evaluation", "mine"), read(folder / "words", "Capitals")):
        assert (numbers["accuracy"], numbers["exact_match"], numbers["f1"]) == (0.5, 0.5, 0.5)


def test_a_temperature_that_is_not_given_is_told(folder: Path) -> None:
    with local_service(Solver()) as server:
        run(of_solver(server), "-b", f"gsm8k={write_sums(folder, 1)}", "--samples", "2")
    assert read(folder / "evaluation")[0]["temperature"] == 1.0


def test_a_judge_that_is_down_is_told(folder: Path) -> None:
    judge = "{base_url: 'http://127.0.0.1:9/v1', model: j, timeout_s: 1, on_failure: wrong}"
    options = ["-b", f"gsm8k={write_sums(folder, 2)}", "--set", f"env_config.scorer={{name: judge, options: {judge}}}"]
    with local_service(answering({})) as server:
        output = run(f"{server.url}/v1#solver", *options)
    numbers, rows = read(folder / "evaluation")
    assert numbers["score_failures"] == {"judge/unreachable": 2} == {rows[0]["score_failure"]: len(rows)}
    assert "gsm8k, solver: 2 of 2 attempts were not judged by the scorer asked for (judge/unreachable)" in " ".join(
        output.split()
    )


def test_a_refused_key_is_told_in_the_words_of_the_command(folder: Path) -> None:
    with local_service(lambda _: Reply({"error": "no"}, 401)) as server:
        output = run(of_solver(server), "-b", f"gsm8k={write_sums(folder, 1)}", status=1)
    assert "Correct the address or the model's name, or the key in the environment variable AGENT_API_KEY" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m"], "--benchmarks is missing: name some of gsm8k, math,"),
        (["m", "-b", "gsm8"], "unknown key 'benchmark gsm8': did you mean 'benchmark gsm8k'"),
        (["m", "-b", "mine"], "did you mean 'benchmark musique'?; or say where its questions are by NAME=PATH"),
        (["m", "-b", "mine=gone.jsonl"], "benchmark mine = 'gone.jsonl': there is no such file"),
        (["m", "-b", "gone.jsonl"], "benchmark gone = 'gone.jsonl': there is no such file"),
        (
            ["m", "-b", "mine=other.jsonl"],
            "no question in extra_info.question, problem, question, messages, prompt; fields",
        ),
        (["m", "-b", "sums.jsonl,./sums.jsonl"], "another is called 'sums': give one a name of its own by NAME=PATH"),
        (
            ["m", "-b", "sums.jsonl", "--answers", "some"],
            "env_config.read_answer = 'some': must be one of 'tagged', 'boxed', 'any'",
        ),
        (["m", "-b", "gsm8k"], "To obtain it: where there is a network, run hf download"),
        (["m", "-b", "gsm8k.jsonl"], "is it a copy of 'gsm8k'? Write gsm8k=gsm8k.jsonl, or another name"),
        (["m", "-b", "GSM8K.jsonl"], "is it a copy of 'GSM8K'? Write GSM8K=GSM8K.jsonl, or another name"),
        (["http://127.0.0.1:1/v1", "-b", "gsm8k"], "Write http://127.0.0.1:1/v1#MODEL"),
        (["./gone", "-b", "gsm8k=sums.jsonl"], "MODEL: there is no folder './gone'"),
        (["m", "-b", "gsm8k=sums.jsonl", "--set", "env_config.tools=python"], "env_config.tools"),
        (["m", "-b", "gsm8k=sums.jsonl", "--set", "env_config.tools=[pithon]"], "pithon"),
        (["m", "-b", "gsm8k=sums.jsonl", "--set", "env_config.scorer=judg"], "did you mean 'judge'"),
        (["m", "-b", "gsm8k=sums.jsonl", "--set", "temprature=1"], "unknown key '--set temprature'"),
        (["m", "-b", "gsm8k=sums.jsonl", "--set", "env_config.limit_test=1"], "--set env_config.limit_test: "),
        (["http://127.0.0.1:1/v1#m", "-b", "gsm8k", "--retrieval-prob", "0.5"], "is an endpoint, which cannot be shown"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: list[str], message: str) -> None:
    write_sums(folder, 2)
    (folder / "other.jsonl").write_text('{"q": "What is 1 + 2?", "a": "3"}\n')
    assert message in run(*arguments, status=1)
