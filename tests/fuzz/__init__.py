"""Random problems for every public call, judged by arithmetic that is not the library's; see docs/fuzz.md."""
