"""The report of a comparison: one self-contained HTML page with plots in SVG."""
