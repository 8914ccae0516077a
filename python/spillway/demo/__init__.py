"""The tour that `spillway demo` and `make quickstart` are, in small parts that are of use without each other."""
