"""Language models by name, with the adapters, precision and memory use that a job asks for."""
