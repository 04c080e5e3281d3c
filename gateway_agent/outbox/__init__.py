"""What must reach the aggregator: queued durably, sent while there is a link, settled by a receipt alone."""
