"""Commands that watch, check and load a cluster: top, doctor, bench."""
