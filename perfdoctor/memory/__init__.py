"""What fills the memory of a device: allocations as columns, what each is for, and the account of the peak."""
