"""Milvus, a Lite path or a server; the only folder that imports pymilvus. Knows nothing of what is stored.

``connection`` calls and repeats; ``handle`` has the operations, ``schema`` the columns, ``index`` chooses an index;
``lite/`` is the one server of a Lite path, ``snapshot/`` a Lite collection in memory;
``notes`` small facts beside a collection.
"""
