"""Questions as people type them, for evaluation: no training text has these wordings.

``TYPED`` has the forms of :mod:`recipes.toy.questions` and its slots. ``UNKNOWABLE`` asks for what no picture answers.
"""

from __future__ import annotations

from typing import Final

TYPED: Final[dict[str, tuple[str, ...]]] = {
    "colour": (
        "what color is the {kind}", "whats the color of the {kind}", "{kind} color?", "so which color is the {kind}",
        "and the {kind}'s colour?", "What colour would you say the {kind} is?", "tell me what color the {kind} has",
    ),
    "is_colour": ("the {kind} is {colour}, right?", "is that {kind} {colour}", "would you call the {kind} {colour}?"),
    "size": ("is it a big {kind} or a small one?", "{kind}: big or small", "hows the {kind}, size wise?"),
    "total": (
        "how many objects", "number of objects?", "how many things in total here", "so how many objects do you count?",
    ),
    "count": ("number of {kinds}?", "how many {kinds}", "{kinds}: how many?", "how many {kinds} has it got"),
    "where": (
        "where's {name}?", "wheres {name}", "whereabouts is {name}", "location of {name}?", "where did {name} go",
    ),
    "side": ("whats {spot}", "{spot}?", "which object is {spot}", "so what do we have {spot}"),
    "neighbour": ("whats {way} {name}", "which thing is {way} {name}?", "anything {way} {name}?"),
    "exists": (
        "any {kinds} here?", "got a {kind} in there?", "does it have a {kind}", "do you spot any {kinds}",
        "a {kind} somewhere?",
    ),
    "exists_coloured": (
        "any {colour} {kinds} here?", "does it have a {colour} {kind}", "a {colour} {kind} somewhere?",
    ),
    "which_colour": ("anything {colour}?", "whats {colour} here", "which ones are {colour}"),
    "larger": (
        "which one is bigger, {first} or {second}", "{first} or {second}, which is the bigger one?",
        "who is larger: {first} or {second}?",
    ),
    "is_larger": ("{first} is bigger than {second}, isn't it?", "would you say {first} is larger than {second}"),
    "same_colour": ("same color for the {kind} and the {other}?", "are the {kind} and the {other} the same color"),
    "weather": ("whats the weather", "hows the weather", "weather?", "what kind of weather do they have"),
    "is_weather": ("is it {weather} outside", "it's {weather}, right?", "would you call this {weather} weather?"),
    "time": ("day or night?", "whats the time of day", "time of day?", "what time is it"),
    "is_time": ("it's {hour}, right?", "is it already {hour}", "would you say that it is {hour}"),
    "place": ("where is this", "what place is it", "whats the setting?", "where does this take place"),
    "is_place": ("this is {place}, right?", "could this be {place}", "is that {place}"),
    "things": ("what objects can you find", "list all the objects", "name the things in it"),
}  # fmt: skip

STRANGE_TYPED: Final = ("giraffe", "person", "airplane", "piano", "dragon", "elephant")  # no scene has them

UNKNOWABLE: Final[tuple[str, ...]] = (
    "why is the {kind} so sad?", "Why did they put the {kind} there?", "why {colour} though",
    "how come it is {colour}?", "who painted this?", "Who does the {kind} belong to?", "whos the owner of the {kind}",
    "who else lives nearby", "what is the {kind} called?", "whats the name of the {kind}",
    "Does the {kind} have a name?", "what's your name", "how much is the {kind}?", "what would the {kind} cost me",
    "is the {kind} expensive", "how many dollars for it", "is this a photo?", "Is this a real photograph?",
    "was this made by a computer", "which camera took this", "what year is it", "how old is the {kind}",
    "when was this painted?", "what day of the week is it", "what is the {kind} thinking about",
    "is the {kind} hungry?", "Does the {kind} like music?", "can the {kind} talk", "what happens next?",
    "where will the {kind} go tomorrow", "what happened before this?", "will the {kind} come back",
    "de quelle couleur est le chat ?", "wo ist der Hund?", "¿Qué hay en la imagen?", "cosa vedi nella foto?",
    "wie viele Dinge siehst du?", "onde está o barco?", "что на картинке?", "blah blah blah", "asdf qwer zxcv", "xyzzy",
    "the of and to", "???", "42", "hello friend", "thank you so much", "what is the capital of France?",
    "what is 2 plus 2", "write me some python code", "what's the meaning of life", "how do I bake a cake",
    "sing me a song", "how heavy is the {kind}?", "what does the {kind} smell like", "is the {kind} made of wood?",
    "how fast is the {kind}", "which country is this?", "how warm is it in degrees",
    "is there a {kind} behind the camera?",
)  # fmt: skip
