"""What each page shows: a function of the store, of the address and of the time, as HTML and as JSON alike."""
