"""The parts of ``benchmarks/schedule.py``: recorded trajectories, engines that share their time, schedules of a training."""
