"""`python -m swarmd` is the console script `swarmd`."""

from swarmd.cli import main

if __name__ == "__main__":
    main()
