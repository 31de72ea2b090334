"""What follows a lost checkpoint: the old generation is closed, watermarks are kept."""
