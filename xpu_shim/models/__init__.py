"""What verl's model side needs on XPU: attention, packing, padding, the critic, compilation and figures for metrics."""
