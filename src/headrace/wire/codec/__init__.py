"""Message schemas, and the functions that are compiled from them."""
