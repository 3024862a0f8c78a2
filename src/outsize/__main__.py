"""`python -m outsize`: the command line, where no script of that name is on the path."""

from outsize.cli import main

if __name__ == "__main__":  # processes that prepare batches import this file again
    main()
