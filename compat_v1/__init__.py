if __name__ != "nanokv.compat_v1":
    raise ImportError("import nanokv.compat_v1: the bare name `compat_v1` would be a second copy of it")
