"""Headrace against its peers: the same load, the same machine, the same run, one after the other.

    python -m bench                          every workload, the peers that are installed (Kafka is fetched)
    python -m bench produce-1k --quick --peers kafka-fsync
    python -m bench queue                    the workloads whose names begin with it; all their peers are fetched
    python -m bench --ref HEAD~5             Headrace of two commits

A workload (workloads/) puts one kind of load on a running server and returns figures; the schedule
(schedule.py) takes the peers (peers/) in turn, A B A B, after a round that is thrown away; the report
(report.py) gives medians, spreads and ratios. A ratio is taken within a round: this kind of machine drifts
by a factor of two in minutes.
"""
