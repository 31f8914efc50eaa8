"""Layer 1: Milvus, a Lite path or a server; the only folder that imports pymilvus. Knows nothing of what is stored.

``connection`` calls and repeats; ``handle`` has the operations, ``schema`` the columns, ``index`` the choice of an index;
``lite_lease`` and ``lite_server`` are the one server of a Lite path, ``lite_engine`` what it serves; ``snapshot`` is a Lite
collection in memory, with its files (``snapshot_files``), its index (``snapshot_graph``) and its version (``live_keys``);
``notes`` small facts beside a collection.
"""
