"""Benchmark Headrace against other brokers: the same load on the same machine in the same run.

    python -m bench                          every workload, the peers that are installed (Kafka is fetched)
    python -m bench produce-1k --quick --peers kafka-fsync
    python -m bench queue                    the workloads whose names begin with it; all their peers are fetched
    python -m bench --ref HEAD~5             Headrace of two commits

- A workload (workloads/) puts one kind of load on a running server and returns figures.
- The schedule (schedule.py) alternates between the peers (peers/), A B A B, after a warm-up round.
- The report (report.py) has medians, spreads and ratios. A ratio is computed within a round, because the speed of a
  virtual machine drifts by a factor of two in minutes.
"""
