"""Writing: producer, batches that wait, and the requests that carry them."""
