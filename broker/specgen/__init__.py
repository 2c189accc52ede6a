"""specgen: from an OpenAPI document to the routes that can be granted, the clients and the text that a model is shown.

A document is untrusted text. It is read (``document.py``, ``references.py``), told as operations in our own words
(``operations.py`` makes the types of ``model.py``), and written out: ``catalog.py``, ``clients.py``, ``describe.py``,
``report.py``. ``generate.py`` tells the whole story. Nothing here speaks to the network.
"""
