"""`python -m adaptive_spec.cli`: the command where its script isn't on the path."""

import sys

from adaptive_spec.cli import main

sys.exit(main())
