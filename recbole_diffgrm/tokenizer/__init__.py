"""From item text to semantic IDs (SIDs). item_text -> text_encoder -> quantizers -> collisions; pipeline runs them."""
