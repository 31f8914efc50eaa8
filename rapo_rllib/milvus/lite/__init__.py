"""The one server process of a Milvus Lite path, and how its users share it."""
