"""Where results go beside Tune's own files: Weights & Biases, MLflow, or any Tune callback, named in a job's ``loggers``."""
