"""Send results beside Tune's own files: to Weights & Biases, MLflow, or any Tune callback, named in a job's ``loggers``."""
