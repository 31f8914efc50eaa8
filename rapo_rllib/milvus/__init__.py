"""Access to Milvus, as a Lite path or as a server. Only this folder imports pymilvus; it does not know what the rows mean.

``handle`` has the operations on a server; ``connection`` makes and repeats their calls. ``lite/`` has the same operations on a
Lite path. ``schema`` has columns, indexes and conditions. ``collection`` is one collection with notes beside it.
"""
