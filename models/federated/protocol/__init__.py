"""What every federated algorithm is made of: the record, the merge of updates, the training loop, the list of names."""
