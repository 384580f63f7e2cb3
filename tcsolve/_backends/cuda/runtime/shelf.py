"""What is kept for later, in lists that may change under one's hands.

The garbage collector may end a loan in the middle of what is done here, and then something is put back.  So
an entry belongs to whoever removes it, and what was not removed is nobody's.
"""

__all__ = ["clear", "put", "take"]


def take(shelf, key):
    """Return the entry with a key that was put there last, removed, or None."""
    for entry in reversed(list(shelf)):
        if entry.key == key and _removed(shelf, entry):
            return entry
    return None


def put(shelf, entry, most, most_bytes):
    """Put an entry on a shelf; return what had to go for it, removed.

    There are at most `most` entries then, and those on the device of this one, with which a key begins, have
    at most `most_bytes`, if there are several.  The first to go is one that has recorded nothing, then the
    oldest.
    """
    shelf.insert(len(shelf) if entry.recordings else 0, entry)
    beyond, kept = shelf[:-most], shelf[-most:]
    here = [other for other in kept if other.key[0] == entry.key[0]]
    while len(here) > 1 and sum(other.idle_bytes for other in here) > most_bytes:
        beyond.append(here.pop(0))
    return [other for other in beyond if _removed(shelf, other)]


def clear(shelf):
    """Return all entries, removed."""
    return [entry for entry in list(shelf) if _removed(shelf, entry)]


def _removed(shelf, entry):
    """Remove an entry; tell whether it was still there."""
    try:
        shelf.remove(entry)
    except ValueError:
        return False
    return True
