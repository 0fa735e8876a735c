"""The job `report`: throughput, latency and backlog of topics as an HTML page and Parquet tables."""
