"""Where the GPU's time went: timeline, account, idle gaps and their causes, phases."""
