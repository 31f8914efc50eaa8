"""Reads back what loggers wrote: event files of TensorBoard, and files of offline W&B runs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def tensorboard_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """``{tag: {step: value}}`` of all event files in ``folder``. A record: length (8 bytes), sum (4), an event, sum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    scalars: dict[str, dict[int, float]] = {}
    for file in folder.glob("events.out.tfevents.*"):
        content, place = file.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    return scalars


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: a head of 7 bytes, then LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (rest := 32768 - place % 32768) < 7:
            place += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several pieces
            yield Record.FromString(record)
            record = b""
