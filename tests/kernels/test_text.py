"""The text of the kernels."""

from pathlib import Path

import tcsolve.kernels

MOST = 120


def test_no_line_is_long():
    folder = Path(tcsolve.kernels.__file__).parent
    files = [*folder.rglob("*.cu"), *folder.rglob("*.cuh")]
    long = [
        f"{file.name}:{number}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > MOST
    ]
    assert len(files) > 50 and not long
