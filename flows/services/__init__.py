"""Prefect, MLflow, worker and app as processes: started, watched, ended."""
