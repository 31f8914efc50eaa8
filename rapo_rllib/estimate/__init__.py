"""How much memory and time a job needs, before anything starts: ``rllib train file JOB --estimate``."""
