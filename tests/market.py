"""Matrix Market files for tests."""

import gzip

HEADER = "%%MatrixMarket matrix coordinate"
GOOD = f"{HEADER} real general\n2 2 2\n1 1 1.0\n2 2 2.0\n"


def write(path, text):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
