"""How fast it is: measurements that print, and never fail a test."""
