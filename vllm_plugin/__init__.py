"""The vLLM plugin: every request of a vLLM server gets its own speculation depth at every step; see DEPLOY.md."""
