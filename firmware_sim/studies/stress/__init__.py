"""The study of predicting stress from wearable sensors."""
