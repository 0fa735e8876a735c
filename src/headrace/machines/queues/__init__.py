"""One subscription in one partition: leases, settled offsets, retries, filters."""
