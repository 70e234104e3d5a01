"""Compiled core: what a game and a traversal are; every hot function is noexcept nogil."""
