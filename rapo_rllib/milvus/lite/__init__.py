"""Access to a Milvus Lite path: one process, the owner, has it open, and the other processes ask the owner.

LiteHandle --Ray actor, or this process--> Owner --> Database (Lite, on disk) and a Table per collection (rows, in memory)
"""
