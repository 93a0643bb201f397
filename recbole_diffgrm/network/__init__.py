"""DiffGRM's network and the views it is trained on. Knows nothing of RecBole."""
