"""Estimates of the memory and time of a job, before anything starts: ``rllib train file JOB --estimate``."""
