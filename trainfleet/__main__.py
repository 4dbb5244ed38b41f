"""`python -m trainfleet`, the same as the `trainfleet` command."""

from trainfleet.cli import main

if __name__ == "__main__":
    main()
