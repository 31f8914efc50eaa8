"""What the command says before it does anything."""

import subprocess
import sys

from cli_runs import environment, rllib


def test_help_of_train_file_is_light() -> None:
    code = (
        "import sys\nfrom rapo_rllib.cli.main import app\n"
        "app(['train', 'file', '--help'], standalone_mode=False)\n"
        "print('heavy:', [name for name in ('ray', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("heavy: []\n")
    for option in ("--stop", "--set", "--restore", "--storage-path", "--estimate"):
        assert option in done.stdout


def test_version(tmp_path) -> None:
    import ray

    import rapo_rllib

    assert rllib(tmp_path, "--version").stdout == f"rapo_rllib {rapo_rllib.__version__} with Ray {ray.__version__}\n"
