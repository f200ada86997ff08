"""`python -m shoal` is the `shoal` command; child processes are started this way, so that they run in the parent's own
environment."""

from shoal.cli import main

if __name__ == "__main__":
    main()
