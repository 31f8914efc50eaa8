"""Language models by name, with adapters, precision and memory as a job wants them."""
