"""The buffer's real parts."""

from buffer_fixtures import make_buffer, minilm  # noqa: F401
