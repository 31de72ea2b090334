"""Payments charged on real Spark that is killed half-way."""
