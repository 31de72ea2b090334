"""The real protocol on a simulated store, sink and clock: one seed replays a world."""
