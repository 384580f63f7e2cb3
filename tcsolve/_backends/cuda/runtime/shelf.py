"""Lists of objects that are kept for reuse, safe against changes by finalizers.

The garbage collector may run at any allocation, and a finalizer may then put an entry back on the list.  So
only the caller that has removed an entry from the list, without an error, may use it.
"""

__all__ = ["clear", "put", "take"]


def take(shelf, key):
    """Remove and return the last entry with a key, or None if there is none."""
    for entry in reversed(list(shelf)):
        if entry.key == key and _removed(shelf, entry):
            return entry
    return None


def put(shelf, entry, most, most_bytes):
    """Put an entry on a shelf; if there are too many, remove some, perhaps this one, and return them.

    Afterwards there are at most `most` entries.  The device of an entry is the first item of its key; the
    entries on the device of this entry hold at most `most_bytes`, unless there is only one.  Entries without
    recordings are removed first, then the oldest ones.
    """
    shelf.insert(len(shelf) if entry.recordings else 0, entry)
    beyond, kept = shelf[:-most], shelf[-most:]
    here = [other for other in kept if other.key[0] == entry.key[0]]
    while len(here) > 1 and sum(other.idle_bytes for other in here) > most_bytes:
        beyond.append(here.pop(0))
    return [other for other in beyond if _removed(shelf, other)]


def clear(shelf):
    """Remove and return all entries."""
    return [entry for entry in list(shelf) if _removed(shelf, entry)]


def _removed(shelf, entry):
    """Remove an entry; return whether it was still there."""
    try:
        shelf.remove(entry)
    except ValueError:
        return False
    return True
