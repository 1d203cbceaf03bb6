"""Steps with content-based cache keys, the artifact store, and Dask workers."""
