"""Real servers on loopback for tests and for `semel chaos`: PostgreSQL, Redis, Kafka, HTTP.

Always true:
- a server listens on loopback only, and has a folder and a port of its own;
- it ends with the process that started it, however that ends, and leaves nothing behind.
"""
