"""Commands about alarms: what is known of them, done about them, announced, measured around them, and who is called."""
