"""Systems on a device that are solved by the library's factors."""
