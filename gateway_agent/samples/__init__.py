"""Raw samples around anomalies: held in memory, kept as clips, and sent where the site asks for them."""
