"""Passages to search in, kept in a Milvus collection.

``passages`` reads files, ``build`` embeds and stores them in a ``collection``, and ``search_tool`` lets a policy look into it.
"""
