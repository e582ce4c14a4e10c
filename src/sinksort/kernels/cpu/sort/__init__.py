"""Sorted values where eps is small or targets are many, in double precision."""
