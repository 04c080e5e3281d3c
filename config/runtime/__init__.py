"""What both services and all commands run on: shell and loop, service, clock, files, stores, command line."""
