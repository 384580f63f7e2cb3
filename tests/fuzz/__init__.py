"""Random problems for every public call, judged by arithmetic that is not the library's.

See docs/contributing/random_cases.md.
"""
