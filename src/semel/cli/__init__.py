"""The faces at a terminal: the command `semel`."""
