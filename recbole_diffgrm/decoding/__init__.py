"""From the network's predictions to ranked IDs, and from IDs to items."""
