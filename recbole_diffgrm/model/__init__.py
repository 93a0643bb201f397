"""DiffGRM: the network, and how it is trained."""
