"""From a network's predictions to ranked semantic IDs, and from semantic IDs to ranked items."""
