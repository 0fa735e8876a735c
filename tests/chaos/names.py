"""The names of the topics, groups and clients of the workload, and how topics are replicated."""

from __future__ import annotations

NUMBERS, SOURCE, COPIES = "numbers", "source", "copies"
JOBS = "jobs"
REST_JOBS = "rest-jobs"
SHARED = "shared"
JAVA_NUMBERS = "java-numbers"
SPARK_SOURCE, SPARK_COPIES = "spark-source", "spark-copies"
CHANGING = "changing"
"""extended, trimmed and reassigned by the administrator; two replicas, so that it can move among three brokers"""
SCRATCH = "scratch-"
"""the prefix of the topics that the administrator creates and deletes"""

FEEDER = "feeder"
WRITERS = {"w1": NUMBERS, "w2": NUMBERS, FEEDER: SOURCE}
READER = "reader"
GROUP = "members"
MEMBERS = ("member-1", "member-2")
COPIERS = ("copier-1", "copier-2")

REPLICAS = 3
CHANGING_REPLICAS = 2
