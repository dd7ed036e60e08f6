"""Epsilon by round, as a small picture inside the page."""

from collections.abc import Sequence
from typing import Any

from .._numbers import epsilon_text
from .markup import Markup, tag

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 150, 46, 8, 18, 24


def chart(path: Sequence[Sequence[float]], stated: Any) -> Markup:
    """Return the picture: what was released by each round, and what is stated; nothing for fewer than two rounds."""
    if len(path) < 2:
        return Markup("")
    first, last, top = path[0][0], path[-1][0], float(stated) or 1.0

    def place(r: float, epsilon: float) -> tuple[float, float]:
        across = (r - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return LEFT + across, HEIGHT - BOTTOM - min(epsilon / top, 1.0) * (HEIGHT - TOP - BOTTOM)

    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(r, epsilon) for r, epsilon in path))
    floor, limit = HEIGHT - BOTTOM, TOP
    labels = [
        tag("text", epsilon_text(top), x=LEFT - 6, y=limit + 4, text_anchor="end"),
        tag("text", "0", x=LEFT - 6, y=floor + 4, text_anchor="end"),
        tag("text", f"{first:g}", x=LEFT, y=HEIGHT - 8),
        tag("text", f"{last:g}", x=WIDTH - RIGHT, y=HEIGHT - 8, text_anchor="end"),
        tag("text", "round", x=(LEFT + WIDTH - RIGHT) // 2, y=HEIGHT - 8, text_anchor="middle"),
        tag("text", "stated, for the whole plan", x=LEFT + 6, y=limit - 5),
    ]
    picture = tag(
        "svg",
        tag("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor),
        tag("line", class_="limit", x1=LEFT, x2=WIDTH - RIGHT, y1=limit, y2=limit),
        tag("polyline", class_="path", points=points),
        *labels,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label="epsilon of what was released, by round",
    )
    return tag("figure", picture, tag("figcaption", "epsilon of what was released by then, which is not a guarantee"))
