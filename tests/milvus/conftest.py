"""The buffer's real parts, for these tests too."""

from buffer_fixtures import make_buffer, minilm  # noqa: F401
