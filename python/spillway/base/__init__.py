"""What every package may use and what knows none of them: how the C++ engine is called, numbers as a person reads them,
one line of progress, warnings about silent drives, exact means, files that come along with the package."""
