"""Lines for the user, on standard output and standard error."""

import sys

__all__ = ["print_aligned", "say", "tell"]


def say(kind, message):
    """Print an error or a warning as one line on standard error."""
    tell(f"tcsolve: {kind}: " + " ".join(str(message).split()), sys.stderr)


def tell(text, stream):
    """Print a line on a stream, unless it is closed."""
    # Python sets a closed standard stream to None, and print(file=None) writes to standard output.
    if stream is not None:
        print(text, file=stream)


def print_aligned(lines, stream):
    """Print the dict `lines` as lines of a name and its text."""
    for name, text in lines.items():
        tell(f"{name:15} {text}", stream)
