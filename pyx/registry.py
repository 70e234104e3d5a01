"""The games by name: one line each."""

import difflib

from pyx.kuhn import Kuhn
from pyx.leduc import Leduc
from pyx.liars_dice import LiarsDice
from pyx.lost_cities import LostCities

GAMES = {
    "kuhn": Kuhn,
    "leduc": Leduc,
    "liars_dice": LiarsDice,
    "lost_cities": LostCities,
}


def load_game(name, **parameters):
    """The game called `name`; keywords are its parameters. ValueError on an unknown name or parameter."""
    if name not in GAMES:
        near = difflib.get_close_matches(str(name), GAMES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no game is called {name!r}; {hint}there are: {', '.join(GAMES)}")
    try:
        game = GAMES[name](**parameters)
    except TypeError as error:
        raise ValueError(f"{name} was given parameters it does not have: {error}") from error
    # A __cinit__ without arguments takes any and ignores them.
    unknown = [key for key in parameters if key not in game.parameters]
    if unknown:
        has = f"its parameters are: {', '.join(game.parameters)}" if game.parameters else "it has none"
        raise ValueError(f"{name} was given parameters it does not have: {', '.join(unknown)}; {has}")
    return game
