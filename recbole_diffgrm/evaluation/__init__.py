"""From scores to ranks, and from ranks to RecBole's metrics."""
