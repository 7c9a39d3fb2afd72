"""The standalone engine: a real model as the runner of the serving scheduler."""
