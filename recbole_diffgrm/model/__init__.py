"""RecBole models: DiffGRM, and floors that it has to beat."""
