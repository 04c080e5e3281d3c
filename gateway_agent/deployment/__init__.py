"""A model's way into force on a gateway: what is asked of it, who watches it, and the way back."""
