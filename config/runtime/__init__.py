"""What both services and all commands run on: the loop, the clock, files, the lock of a store, the command line."""
