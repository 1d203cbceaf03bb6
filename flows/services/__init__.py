"""Background services (Prefect, MLflow, workers, app): start, watch and stop them."""
