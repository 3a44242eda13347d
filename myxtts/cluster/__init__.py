"""Clusters of Ray: who may join one, preparers that make batches for others, and trainers that share batches and add up their gradients."""
