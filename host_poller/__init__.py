if __name__ != "nanokv.host_poller":
    raise ImportError("import nanokv.host_poller: the bare name `host_poller` would be a second copy of it")
