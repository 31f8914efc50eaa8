"""Estimates of the memory of a job, before anything starts: ``rllib train file JOB --estimate``."""
