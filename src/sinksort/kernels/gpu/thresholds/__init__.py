"""Two to four targets, or a few more, for rows of any length."""
