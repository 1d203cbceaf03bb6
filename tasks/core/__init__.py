"""Steps, content keys, the store of their results, Dask workers."""
