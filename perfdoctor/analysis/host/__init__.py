"""What the CPU did: waits for batches, copies, compilation, and the lines of the user."""
