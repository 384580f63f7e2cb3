"""The arguments, stack and shared memory of a compiled kernel, read from its binary."""

import struct
from collections import Counter
from typing import NamedTuple

# `cuobjdump -elf` names them EIFMT_SVAL (a way to store a value), EIATTR_FRAME_SIZE, EIATTR_KPARAM_INFO.
SIZED, FRAME_SIZE, PARAMETER = 0x04, 0x11, 0x17
NO_BITS = 8  # a section without contents


class Resources(NamedTuple):
    """Arguments of an entry, bytes of stack of a thread, and static shared memory of a block."""

    arguments: int
    stack: int
    shared: int


def resources(cubin, entry):
    """Return the `Resources` of an entry of a cubin."""
    sections = _sections(cubin)
    number = _symbols(cubin, sections).index(entry)
    of_all, own = (_attributes(sections[name][1]) for name in (".nv.info", f".nv.info.{entry}"))
    (stack,) = (
        value
        for kind, payload in of_all
        if kind == FRAME_SIZE
        for of, value in [struct.unpack("<II", payload)]
        if of == number
    )
    arguments = Counter(kind for kind, _ in own)[PARAMETER]
    shared = sections.get(f".nv.shared.{entry}", (0, b""))[0]
    return Resources(arguments, stack, shared)


def _sections(cubin):
    """Return {name: (bytes, contents)} of the sections of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = heads[names_at][4]
    return {
        _text(cubin, names + name): (length, b"" if kind == NO_BITS else cubin[at : at + length])
        for name, kind, _, _, at, length in heads
    }


def _symbols(cubin, sections):
    """Return the names of all symbols, in the order in which they are numbered."""
    symbols, texts = sections[".symtab"][1], sections[".strtab"][1]
    return [_text(texts, name) for name, _, _ in struct.iter_unpack("<I4s16s", symbols)]


def _text(data, start):
    return data[start : data.index(b"\0", start)].decode()


def _attributes(info):
    """Return [(attribute, payload)] of a section .nv.info; small values are left out."""
    found, at = [], 0
    while at < len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == SIZED:
            found.append((kind, info[at : at + size]))
            at += size
    return found
