"""A Milvus Lite collection in memory, once per machine: what makes retrieval from Lite fast."""
