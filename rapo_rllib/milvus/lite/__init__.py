"""A Milvus Lite path: the one process that has it open, and how the others reach it.

LiteHandle --Ray actor, or this process--> Owner --> Database (Lite, on disk) and one Table (rows and keys, in memory) each
"""
