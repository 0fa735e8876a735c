"""The transaction coordinator, its markers, and the check of transactional batches."""
