"""A plugin of pytest that rebinds the functions as `tcsolve run` does, before the tests are imported."""

import os

from tcsolve._family.installed import install

if os.environ.get("TCSOLVE_SWAP"):
    install()
