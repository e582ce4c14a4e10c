def page(*a): return "", {}
