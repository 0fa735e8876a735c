"""Commands for streams: manage topics, write and read records."""
