"""Share groups (KIP-932): members, assignor and sessions."""
