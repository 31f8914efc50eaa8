"""A callback that writes transcripts where RAPO does, whose own way needs an engine."""

from __future__ import annotations

from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rapo_rllib.algorithm.trial_files import trial_folder


class WritesTranscripts(RLlibCallback):
    """One line an iteration."""

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        folder, filesystem = trial_folder(algorithm, "transcripts")
        filesystem.create_dir(folder)
        iteration = result["training_iteration"]
        with filesystem.open_output_stream(f"{folder}/iteration_{iteration:05d}.jsonl") as file:
            file.write(b'{"question": "%d"}' % iteration)
