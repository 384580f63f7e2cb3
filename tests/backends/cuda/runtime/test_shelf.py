"""A shelf keeps the objects that were used last, within its limits, and gives each to one owner."""

import pytest

from tcsolve._backends.cuda.runtime import shelf as shelf_module


class Key(tuple):
    """A key whose first comparison calls a function, as if the garbage collector ran during it."""

    meanwhile = None

    def __eq__(self, other):
        happens, self.meanwhile = self.meanwhile, None
        if happens:
            happens()
        return tuple(self) == tuple(other)

    __hash__ = tuple.__hash__


class Entry:
    def __init__(self, *key, recordings=1, idle_bytes=1):
        self.key, self.recordings, self.idle_bytes = Key(key), recordings, idle_bytes


def filled(*entries, most=3, most_bytes=100):
    shelf = []
    for entry in entries:
        assert not shelf_module.put(shelf, entry, most, most_bytes)
    return shelf


def test_the_last_of_a_key_is_taken():
    first, other, last = Entry(0, 5), Entry(0, 6), Entry(0, 5)
    shelf = filled(first, other, last)
    assert shelf_module.take(shelf, (0, 5)) is last and shelf == [first, other]
    assert shelf_module.take(shelf, (0, 5)) is first
    assert shelf_module.take(shelf, (0, 5)) is None and shelf == [other]


def test_the_oldest_goes_when_there_are_too_many():
    entries = [Entry(0, n) for n in range(4)]
    shelf = filled(*entries[:3])
    assert shelf_module.put(shelf, entries[3], 3, 100) == entries[:1]
    assert shelf == entries[1:]


def test_what_has_recorded_nothing_goes_first():
    entries = [Entry(0, n) for n in range(3)]
    shelf, unused = filled(*entries), Entry(0, 9, recordings=0)
    assert shelf_module.put(shelf, unused, 3, 100) == [unused] and shelf == entries


@pytest.mark.parametrize("device, gone", [(0, [0, 2]), (1, [])])
def test_a_device_keeps_a_limited_number_of_bytes_and_always_the_last_entry(device, gone):
    entries = [Entry(0, 1, idle_bytes=40), Entry(1, 1, idle_bytes=40), Entry(0, 2, idle_bytes=40)]
    shelf = filled(*entries, most=4)
    last = Entry(device, 3, idle_bytes=50 if device else 120)
    assert shelf_module.put(shelf, last, 4, 100) == [entries[i] for i in gone]
    assert shelf == [x for x in entries if entries.index(x) not in gone] + [last]


def test_an_entry_that_is_removed_during_the_search_is_not_taken():
    entries, gone = [Entry(0, n) for n in range(3)], []
    shelf = filled(*entries)
    entries[0].key.meanwhile = lambda: gone.extend(shelf_module.put(shelf, Entry(0, 7), 3, 100))
    assert shelf_module.take(shelf, (0, 0)) is None
    assert gone == entries[:1] and len(shelf) == 3


def test_what_comes_while_all_is_removed_is_kept_or_removed():
    class Shelf(list):
        def remove(self, entry):
            super().remove(entry)
            if entry is entries[0]:
                shelf_module.put(self, late, 3, 100)

    entries, late = [Entry(0, n) for n in range(3)], Entry(0, 7)
    shelf = Shelf(entries)
    removed = shelf_module.clear(shelf)
    assert sorted(x.key[1] for x in [*removed, *shelf]) == [0, 1, 2, 7]


def test_no_entry_is_removed_twice():
    class Shelf(list):
        def remove(self, entry):
            super().remove(entry)
            if entry is entries[0]:  # meanwhile another entry is put back, and the shelf is full
                gone.extend(shelf_module.put(self, Entry(0, 8), 1, 100))

    entries, gone = [Entry(0, n) for n in range(3)], []
    shelf = Shelf(entries)
    gone.extend(shelf_module.put(shelf, Entry(0, 7), 1, 100))
    assert len(shelf) == 1 and len({id(x) for x in gone}) == len(gone) == 4
