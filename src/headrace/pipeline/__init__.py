"""Jobs over topics, run by Spark: archive, replay, transform, report, audit."""
