"""What both services and all commands run on: the loop, the clock, the lock of a store, the command line."""
