"""What a simulated world runs on: time, disks, lines and a broker, all of which fail, and how often."""
