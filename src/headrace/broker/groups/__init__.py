"""Consumer groups of both protocols, and the offsets that they commit."""
