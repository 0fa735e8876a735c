"""The harness itself: its arithmetic, its reading of /proc, its turns, its tables and its plot."""
