"""Against gateways that lie: updates judged one by one before they are summed, and robust means."""
