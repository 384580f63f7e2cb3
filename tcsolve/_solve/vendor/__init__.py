"""Systems on a device that are solved with factors from cuBLAS or cuSOLVER, and verified here."""
