"""``python -m oberth``: the command line."""

from oberth.cli.main import main

if __name__ == "__main__":
    main()
