"""From item text to semantic IDs: text -> encoder -> quantiser -> collisions -> artefact; prepare runs them, cached."""
