"""The decisions: pure state machines. Questions change nothing; apply changes and cannot fail."""
