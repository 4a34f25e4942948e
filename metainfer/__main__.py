"""`python -m metainfer`: the same as the `metainfer` script."""

from metainfer.cli import main

if __name__ == "__main__":
    main()
