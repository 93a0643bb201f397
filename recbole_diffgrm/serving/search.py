"""Items by their titles."""

from recbole_diffgrm.serving.recommender import Recommender


class TitleSearch:
    """Of the items that a recommender had at the last `update`. Any thread may search; updates belong to the one that
    adds items, for a model and its items change one after the other."""

    def __init__(self, recommender: Recommender):
        self.recommender = recommender
        self.update()

    def update(self) -> None:
        items = self.recommender.items
        order = self.recommender.popular_items()
        texts = [(f"{items.titles[number]} {items.names[number]}".casefold(), number) for number in order]
        self._of = items, texts

    def find(self, query: str, limit: int) -> tuple[list[tuple[str, str]], int]:
        """(id, title) of the first `limit` items that have all words of the query in id or title, and how many do.
        Popular ones come first, where the model knows which are."""
        words, (items, texts) = query.casefold().split(), self._of
        found = [number for text, number in texts if all(word in text for word in words)]
        return [(items.names[number], items.titles[number]) for number in found[:limit]], len(found)
