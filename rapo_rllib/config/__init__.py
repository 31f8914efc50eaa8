"""A job's keys before anything is built: presets, checks, and the frozen settings of the layers below."""
