"""A plugin of pytest: if TCSOLVE_SWAP is set, it rebinds the functions first, as `tcsolve run` does."""

import os

from tcsolve._family.installed import install

if os.environ.get("TCSOLVE_SWAP"):
    install()
