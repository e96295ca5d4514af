"""`python -m nanokv` is the command line, like `nanokv`."""

from nanokv.cli import main

if __name__ == "__main__":
    main()
