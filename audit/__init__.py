"""The nogil audit checker: reads Cython source and says what keeps it from running on many threads."""
