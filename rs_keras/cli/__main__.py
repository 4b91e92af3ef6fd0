"""Runs the command line as `python -m rs_keras.cli`."""

import sys

from rs_keras.cli import main

sys.exit(main())
