"""Recovery from a lost checkpoint: closing the old generation, and watermarks."""
