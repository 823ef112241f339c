"""The controller: which replica of each broker name is its master, kept through kills."""
