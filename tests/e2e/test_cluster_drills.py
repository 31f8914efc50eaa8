"""Drills: a learner, a node, room on a disk or a Milvus server is gone in a training; it goes on, or ends with a clear message.

``benchmarks/recovery.py`` shows the seconds that each of them records.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import START_S, Run, TwoRaylets, two_raylets, write_job
from jobs import at
from milvus_server import MilvusServer
from relay import Relay

from rapo_rllib.checkpoints.folder import whole_checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

FIRST = "checkpoint_000000"
Record = Callable[[str, object], None]


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    """Begins a run, which is ended with the test."""
    runs: list[Run] = []

    def begin(*arguments: Any, **options: Any) -> Run:
        runs.append(Run(*arguments, **options))
        return runs[-1]

    yield begin
    for each in runs:
        each.end()


def results(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("results/job/*/result.json")
    return [json.loads(line) for line in file.read_text().splitlines()]


def joining(raylets: TwoRaylets, *options: str) -> tuple[str, ...]:
    return ("--ray-address", raylets.address, *options)


def check_all_trained(folder: Path, iterations: int = 4) -> None:
    """Each iteration once at least, each with all of its trajectories; the last checkpoint is whole."""
    found = results(folder)
    assert {result["training_iteration"] for result in found} == {*range(1, iterations + 1)}
    assert {at(result, "env_runners/num_episodes") for result in found} == {8}
    assert at(found[-1], "env_runners/num_episodes_lifetime") == 8 * iterations
    (trial,) = (file.parent for file in folder.glob("results/job/*/result.json"))
    assert json.loads((whole_checkpoints(trial)[-1] / "manifest.json").read_text())["iteration"] == iterations


@pytest.mark.parametrize("learners", [1, 2])
def test_a_killed_learner_ends_the_run_and_resume_goes_on(
    tmp_path: Path, small_model: str, run: Callable[..., Run], record_property: Record, learners: int
) -> None:
    write_job(tmp_path, small_model, learners=learners)
    with two_raylets(other=learners) as raylets:
        ended = run(tmp_path, *joining(raylets))
        ended.wait_for(FIRST)
        (tmp_path / f"kill_learner_{learners - 1}").touch()
        assert ended.status() == 1
        killed = tmp_path / f"kill_learner_{learners - 1}.done"
        record_property("seconds until the run had ended", ended.lines[-1][0] - killed.stat().st_mtime)
        named = f"LearnerError: learner {learners - 1} of {learners} died in an update: "
        assert named in ended.said and f"pid: {killed.read_text()} " in ended.said
        assert "its last checkpoint is " in ended.said and "with --resume goes on from the last checkpoint" in ended.said
        again = run(tmp_path, *joining(raylets, "--resume"))
        assert again.status() == 0, again.said
        assert "continues from" in again.said
    check_all_trained(tmp_path)


def test_a_killed_learner_comes_back_by_itself(
    tmp_path: Path, small_model: str, run: Callable[..., Run], record_property: Record
) -> None:
    write_job(tmp_path, small_model, learners=1)
    with two_raylets() as raylets:
        running = run(tmp_path, *joining(raylets, "--set", "max_failures=1"))
        running.wait_for(FIRST)
        (tmp_path / "kill_learner_0").touch()
        failed = running.wait_for("] failed; the whole error is in")
        recovered = running.wait_for("] iteration ", after=failed)
        record_property("seconds until the next iteration", recovered - (tmp_path / "kill_learner_0.done").stat().st_mtime)
        assert running.status() == 0, running.said
    check_all_trained(tmp_path)


def test_the_node_of_a_learner_is_killed_and_another_joins(
    tmp_path: Path, small_model: str, run: Callable[..., Run], record_property: Record
) -> None:
    write_job(tmp_path, small_model, learners=1)
    with two_raylets() as raylets:
        running = run(tmp_path, *joining(raylets, "--set", "max_failures=1"))
        running.wait_for(FIRST)
        killed = raylets.kill_other()
        failed = running.wait_for("] failed; the whole error is in", after=killed)
        record_property("seconds until it was noticed", failed - killed)
        raylets.add()
        record_property("seconds until the next iteration", running.wait_for("] iteration ", after=failed) - killed)
        assert running.status() == 0, running.said
    check_all_trained(tmp_path)


def test_the_node_of_an_env_runner_is_killed_and_the_others_go_on(
    tmp_path: Path, small_model: str, run: Callable[..., Run], record_property: Record
) -> None:
    write_job(tmp_path, small_model, env_runners=2)
    with two_raylets(head=2) as raylets:  # the trial's process and the first env runner
        running = run(tmp_path, *joining(raylets))
        running.wait_for(FIRST)
        killed = raylets.kill_other()
        record_property("seconds until the next iteration", running.wait_for("] iteration ", after=killed) - killed)
        assert running.status() == 0, running.said
    check_all_trained(tmp_path)


def test_a_disk_that_is_full_while_a_checkpoint_is_written(
    tmp_path: Path, small_model: str, run: Callable[..., Run], record_property: Record
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=400m tmpfs {shlex.quote(str(disk))}"
    if shutil.which("unshare") is None or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("no namespaces: a small disk cannot be made")
    write_job(tmp_path, small_model, on_head=False)
    job = tmp_path / "job.py"
    job.write_text(job.read_text().replace(repr(str(tmp_path)), repr(str(disk))))
    found = f"$(ls -d {shlex.quote(str(disk))}/results/*/*/{FIRST})"  # Tune's note of the run may be cut short
    fill = f"{shlex.quote(str(disk))}/fill"
    script = f'{mount}; touch {fill}_2; "$@"; echo ended $?; rm {fill}er {fill}_2; exec "$@" --restore {found}'
    both = run(tmp_path, "--storage-path", str(disk / "results"), within=[*alone, script, "sh"])
    full = both.wait_for("] iteration 2 ")
    assert both.wait_for("ended 1") > full
    record_property("seconds until the run had ended", both.wait_for("ended 1") - full)
    first = both.said.split("ended 1")[0]
    assert "No space left on device" in first and "its last checkpoint is " in first and FIRST in first
    assert "Traceback" not in first.split("Your training failed.")[1]
    assert both.status() == 0, both.said


@pytest.mark.milvus
def test_a_milvus_server_that_is_gone_for_a_while(
    tmp_path: Path, small_model: str, run: Callable[..., Run], record_property: Record, milvus_server: MilvusServer
) -> None:
    relay = Relay(int(milvus_server.uri.rsplit(":", 1)[1]))
    buffer = {"uri": f"http://127.0.0.1:{relay.port}", "collection": "drill", "timeout_s": 2.0}
    keys = {"num_hybrid": 2, "retrieval_prob": 1.0, "retrieval_level": "trajectory", "step_trace_buffer": buffer}
    write_job(tmp_path, small_model, iterations=40, buffer_growth="successful", **keys)
    with two_raylets() as raylets:
        running = run(tmp_path, *joining(raylets))
        running.wait_for(FIRST)
        relay.cut()
        time.sleep(10)
        running.wait_for("] iteration ", after=time.time())  # it goes on without
        relay.restore()
        restored = time.time()
        assert running.status(2 * START_S) == 0, running.said
    check_all_trained(tmp_path, 40)
    failures = [(at(result, "env_runners/retrieval/failures"), result["timestamp"]) for result in results(tmp_path)]
    answered = [when for failed, when in failures if not failed and when > restored]
    assert any(failed for failed, _ in failures) and answered
    record_property("seconds until it was asked again", answered[0] - restored)
    relay.cut()
