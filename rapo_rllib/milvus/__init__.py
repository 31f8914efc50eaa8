"""Milvus, as a Lite path or a server; the only folder that imports pymilvus, independent of the stored rows.

``handle`` has the operations on a server, ``connection`` calls it and repeats; ``lite/`` has the same ones on a Lite path;
``schema`` has the columns, indexes and conditions; ``collection`` is one collection with notes beside it.
"""
