"""Where it comes from: inbox, marker clock and ingress."""
