"""Solves by `ops.vendor`, with verified answers: on a device, and for factored stacks on the host, too."""
