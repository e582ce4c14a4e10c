"""The specification, in plain torch: a problem is normalised, posed, solved and read.

Everything else in the package answers the same questions faster, or asks them for a user.
"""
