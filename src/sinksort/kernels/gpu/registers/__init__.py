"""Ranks of up to 128 values: the whole plan of a row in the registers of one program."""
