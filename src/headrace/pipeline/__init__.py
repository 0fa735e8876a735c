"""Jobs over topics that run on Spark: archive, replay, transform, report, audit."""
