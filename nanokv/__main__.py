"""`python -m nanokv` is the command line, like `nanokv`."""

from nanokv.tools.cli import main

if __name__ == "__main__":
    main()
