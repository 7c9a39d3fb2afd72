"""The standalone engine: a real model as the runner of the serving scheduler."""

import os

# oneDNN compiles a kernel for every number of rows of every kind of layer, and keeps 1,024 of them (a third of a
# megabyte each), fewer than one model may need: then changes of depth would pay for compiling again, an eighth of a
# pass. Read at oneDNN's first use; whoever has set it knows better.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
