"""The pages of roundoff and the figures on them."""
