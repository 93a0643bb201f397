"""Items by their titles."""

from recbole_diffgrm.experiments.item_table import Items
from recbole_diffgrm.serving.recommender import Recommender


class TitleSearch:
    """Of the items that a recommender has at the moment."""

    def __init__(self, recommender: Recommender):
        self.recommender = recommender
        self._of: tuple[Items, list[tuple[str, int]]] | None = None

    def find(self, query: str, limit: int) -> tuple[list[tuple[str, str]], int]:
        """(id, title) of the first `limit` items that have all words of the query in id or title, and how many do.
        Popular ones come first, where the model knows which are."""
        words, items = query.casefold().split(), self.recommender.items
        found = [number for text, number in self._texts(items) if all(word in text for word in words)]
        return [(items.names[number], items.titles[number]) for number in found[:limit]], len(found)

    def _texts(self, items: Items) -> list[tuple[str, int]]:
        """Texts to search in, and item numbers."""
        if self._of is None or self._of[0] is not items:
            order = self.recommender.popular_items()
            texts = [(f"{items.titles[number]} {items.names[number]}".casefold(), number) for number in order]
            self._of = items, texts
        return self._of[1]
