"""The standalone engine: a real model as the runner of the serving scheduler."""

import os

# oneDNN compiles a kernel for every number of rows and shape of layer, and keeps 1,024 of them. Prompts of a few
# hundred lengths drive out those of the small passes, and then every change of depth pays for compiling anew: an
# eighth of a pass. Read at oneDNN's first use; whoever has set it knows better.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
