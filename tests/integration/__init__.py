"""Tests against real broker processes, sockets and disks."""
