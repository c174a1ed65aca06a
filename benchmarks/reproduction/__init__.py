"""The comparison of [Collage] (Yu et al., ICML 2024, arXiv 2405.03637) at small scale."""
