"""Wordings of questions for training, and their informal variation by rule. Evaluation has others."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable
from typing import Final

from recipes.toy.language import QuestionAnswer, polish
from recipes.toy.phrases import PLURALS
from recipes.toy.questions import STRANGE, Query
from recipes.toy.scene import COLOURS, KINDS

WORDINGS: Final[dict[str, tuple[str, ...]]] = {
    "colour": (
        "What colour is the {kind}?", "Which colour does the {kind} have?", "Tell me the colour of the {kind}.",
        "What is the colour of the {kind}?", "The {kind} is what colour?", "What shade is the {kind}?",
        "Which paint was used for the {kind}?", "Name the colour of the {kind}.", "In which hue is the {kind}?",
        "What tint does the {kind} have?", "The {kind}, what colour?",
        "Which color does the {kind} have?", "Say what color the {kind} is.", "Color of the {kind}?",
        "The {kind} has what color?", "Whats the {kind}'s colour?", "What would you say is the colour of the {kind}?",
        "So the {kind} is of which color?",
    ),
    "is_colour": (
        "Is the {kind} {colour}?", "Is the colour of the {kind} {colour}?", "Is it a {colour} {kind}?",
        "Does the {kind} look {colour}?", "I think the {kind} is {colour}.",
        "The {kind} is {colour}, isn't it?", "Right, the {kind} is {colour}?",
        "Would you say the {kind} is {colour}?", "Can we call the {kind} {colour}?",
    ),
    "size": (
        "How big is the {kind}?", "Is the {kind} large or small?", "What size is the {kind}?",
        "How large is the {kind}?", "What is the size of the {kind}?", "Is the {kind} big?", "Is the {kind} small?",
        "Tell me the size of the {kind}.",
        "Hows the size of the {kind}?", "A big {kind} or a small {kind}?", "Size of the {kind}?",
    ),
    "total": (
        "How many objects are there?", "How many things can you see?", "Count the objects.", "Count everything.",
        "How many things are in the picture?", "What is the number of things?", "How many objects does it show?",
        "Tell me how many things there are.", "How many objects can be seen altogether?",
        "Total number of things?", "So how many things do you see?", "How many objects did you count in total?",
    ),
    "count": (
        "How many {kinds} can you see?", "How many {kinds} are there?", "Count the {kinds}.", "What number of {kinds}?",
        "How many {kinds} are in the picture?", "Tell me how many {kinds} there are.", "Is there more than one {kind}?",
        "Do you see one {kind} or more?",
        "How many {kinds} have you got?", "Number of {kinds} in it?", "{kinds}, how many of them?",
    ),
    "where": (
        "Where is {name}?", "Where can I find {name}?", "In which part of the picture is {name}?", "Find {name}.",
        "Where in the picture is {name}?", "Show me where {name} is.", "What is the position of {name}?",
        "Where do you see {name}?", "{name}, where is it?", "Where does {name} stand?",
        "Where's {name} in it?", "Wheres {name} standing?", "Whereabouts do you see {name}?",
        "The location of {name}?", "Where did you see {name}?", "Where does {name} go?",
    ),
    "side": (
        "What is {spot}?", "What can you see {spot}?", "Is there anything {spot}?", "Which things are {spot}?",
        "What do you see {spot}?", "What stands {spot}?", "Tell me what is {spot}.", "Which object can be seen {spot}?",
        "What is there {spot}?",
        "Whats there {spot}?", "So what stands {spot}?", "Anything {spot}?",
    ),
    "neighbour": (
        "What is {way} {name}?", "What stands {way} {name}?", "Can you see anything {way} {name}?",
        "Is there anything {way} {name}?", "What can you see {way} {name}?", "Which object is {way} {name}?",
        "Tell me what is {way} {name}.",
        "Whats standing {way} {name}?", "The thing {way} {name}?", "Anything to see {way} {name}?",
    ),
    "exists": (
        "Is there a {kind}?", "Can you see a {kind}?", "Is there a {kind} in this picture?", "Do you see a {kind}?",
        "Are there any {kinds}?", "Is a {kind} in the picture?", "Can you find a {kind}?", "Do you see any {kinds}?",
        "Does the picture show a {kind}?", "Is there a {kind} anywhere?", "Can I see a {kind}?",
        "Have you seen a {kind}?",
        "Have you got a {kind} here?", "Any {kinds} in it?", "Is a {kind} somewhere in it?", "Does it show a {kind}?",
        "Can you spot a {kind}?",
    ),
    "exists_coloured": (
        "Is there a {colour} {kind}?", "Can you see a {colour} {kind}?", "Do you see a {colour} {kind} here?",
        "Are there any {colour} {kinds}?", "Does the picture show a {colour} {kind}?",
        "Can you find a {colour} {kind}?", "Is a {colour} {kind} in the picture?",
        "Any {colour} {kinds} in it?", "Is a {colour} {kind} somewhere in it?", "Does it show a {colour} {kind}?",
    ),
    "which_colour": (
        "What is {colour} in this picture?", "Is anything {colour}?", "Can you see anything {colour}?",
        "Which things are {colour}?", "What is {colour}?", "Is there something {colour}?",
        "What has the colour {colour}?", "Name everything that is {colour}.",
        "Whats {colour} in it?", "Which ones look {colour}?", "Anything of the colour {colour}?",
    ),
    "larger": (
        "Which is larger, {first} or {second}?", "What is bigger, {first} or {second}?",
        "Which of them is larger, {first} or {second}?", "Is {first} or {second} the larger one?",
        "{first} or {second}: which is bigger?", "Compare the sizes of {first} and {second}.",
        "Who is bigger, {first} or {second}?", "The bigger one: {first} or {second}?",
    ),
    "is_larger": (
        "Is {first} larger than {second}?", "Is {first} bigger than {second}?",
        "Does {first} look larger than {second}?", "I think {first} is bigger than {second}.",
        "Isn't {first} larger than {second}?", "Would you call {first} bigger than {second}?",
    ),
    "same_colour": (
        "Do the {kind} and the {other} have the same colour?", "Are the {kind} and the {other} of the same colour?",
        "Has the {kind} the same colour as the {other}?", "Is the colour of the {kind} that of the {other}?",
        "Compare the colours of the {kind} and the {other}.",
        "Have the {kind} and the {other} the same color?", "The same color for both, the {kind} and the {other}?",
    ),
    "weather": (
        "What is the weather like?", "How is the weather?", "Describe the weather.", "What weather is it?",
        "What sort of weather is shown?", "Tell me about the weather.", "The weather, please.",
        "How does the sky look?",
        "Whats the weather like?", "Hows the weather in it?", "What kind of weather is it?",
    ),
    "is_weather": (
        "Is it {falling}?", "Is the weather {weather}?", "Is it {weather} here?", "Does the weather look {weather}?",
        "I think it is {weather}.", "Is the sky {weather}?", "Do we have {weather} weather?",
        "It's {weather}, isn't it?", "Right, it is {weather}?", "Would you say it is {weather}?",
        "Can we call it {weather}?",
    ),
    "time": (
        "What time of day is it?", "At what time of day is the scene set?", "Is it day, evening or night?",
        "When is this?", "Which time of day is shown?", "Tell me the time of day.", "Is it light or dark?",
        "Day, evening or night?", "How late is it?",
        "Whats the hour?", "Night or day?", "Which time is it?",
    ),
    "is_time": (
        "Is it {hour}?", "Is the scene set {when}?", "Is it {hour} in the picture?", "Do you see this {when}?",
        "I think it is {hour}.", "Does it look like {hour}?",
        "It's {hour}, isn't it?", "Is it {hour} already?", "Would you call it {hour}?", "Right, it is {hour}?",
    ),
    "place": (
        "Where are we?", "What kind of place is this?", "What place does this picture show?", "What is this place?",
        "Which place do you see?", "Where is the scene set?", "Describe the place.", "What sort of landscape is it?",
        "Tell me where we are.",
        "Whats this place?", "What is the setting?", "Where does it take place?",
    ),
    "is_place": (
        "Does the picture show {place}?", "Is this {place}?", "Is it {place}?", "I think this is {place}.",
        "Does it look like {place}?", "Is the scene {place}?",
        "This is {place}, isn't it?", "Could it be {place}?", "Right, this is {place}?",
    ),
    "things": (
        "What objects are there?", "Which things can you see?", "What things are in the picture?",
        "Name all the objects.", "Which objects does it show?", "Name everything you can see.", "What can be seen?",
        "Which objects are here?",
        "List the things.", "Whats in the picture?", "What objects do you find?", "List everything.",
    ),
    "it_colour": ("What colour is it?", "And what colour is it?", "Which colour does it have?"),
    "it_where": ("Where is it?", "Where exactly is it?", "And where is it?", "Where can I find it?"),
    "it_size": ("Is it large or small?", "How big is it?", "And its size?", "Is it big?"),
    "they_colour": ("What colours do they have?", "Which colours are they?", "And their colours?"),
    "they_where": ("Where are they?", "Where can I find them?", "And where are they?"),
    "they_size": ("Are they large or small?", "How big are they?", "And their sizes?"),
    "look_up": ("The {kind}?",),
    "unknowable": (
        "Why is the {kind} here?", "Why is the {kind} alone?", "Why does the {kind} look like that?", "Why?",
        "Why not?", "Why is it {word}?", "For what reason is the {kind} {word}?", "What is the reason for the {kind}?",
        "How come?", "Who owns the {kind}?", "Who made the {kind}?", "Who drew the picture?", "Who is the artist?",
        "Who are you?", "Who built the {kind}?", "Who left the {kind} here?", "Whose {kind} is it?",
        "Who took this picture?", "Who is your {word} {word}?", "Who invented the {kind}?", "Give the {kind} a name.",
        "How is the {kind} named?", "What is the full name of the {kind}?",
        "Do you know the name of the {kind}'s owner?", "Is the {kind} called {word}?", "What does the {kind} cost?",
        "How much money is the {kind} worth?", "What is the price of the {kind}?",
        "Can I buy the {kind} for ten {word}s?", "Is the {kind} cheap?", "How much did they pay for the {kind}?",
        "Is it a photograph or a drawing?", "Is this picture real?", "Was it drawn by hand?", "Is the {kind} real?",
        "Which program drew this picture?", "Is this an oil painting?", "How many pixels has the picture?",
        "Which year was it?", "What month is it?", "What is the date?", "How many years old is the {kind}?",
        "Is it Monday?", "When did the {kind} arrive?", "When was the {kind} built?",
        "How long has the {kind} been here?", "Is the {kind} new?", "What does the {kind} want?",
        "What does the {kind} feel?", "Is the {kind} happy?", "Is the {kind} tired or {word}?",
        "Does the {kind} love the {word}?", "What is the {kind} dreaming of?", "Can the {kind} fly?",
        "Can the {kind} {word}?", "Does the {kind} sleep at home?", "What does the {kind} eat?",
        "What does the {kind} say?", "Is the {kind} dangerous?", "What will happen tomorrow?", "What comes after this?",
        "What was here yesterday?", "Will the {kind} stay?", "What is the {kind} going to do?",
        "Where did the {kind} come from?", "Where does the {kind} live?", "Where was it bought?",
        "What is the {kind} made of?", "How much does the {kind} weigh?", "How tall is the {kind} in metres?",
        "Is the {kind} soft?", "How fast can the {kind} move?", "What sound does the {kind} make?",
        "How does the {kind} smell?", "Is it loud here?", "What is inside the {kind}?",
        "What is hidden under the {kind}?", "Who is outside the picture?", "What is the temperature?",
        "How strong is the wind?", "In which country are we?", "What is the name of this city?",
        "How far away is the {kind}?", "How many people live here?", "Is the {kind} broken?", "Hello!", "Hi.",
        "Good morning.", "Thanks.", "Thank you.", "Bye.", "Yes.", "No.", "Okay.", "Please.", "Help!", "Stop.",
        "How are you?", "What are you?", "What can you do?", "Are you a robot?", "Are you clever?",
        "Do you like {kinds}?", "Tell me a joke.", "Write a letter to the {word}.", "Translate this into French.",
        "Play some music.", "Open the {word}.", "What is a {word}?", "What is {number} plus {number}?",
        "Who won the {word}?", "Solve x + {number} = {number}.", "{number}", "Who is the president?",
        "How do I cook {word}s?", "What is the largest {word} of the world?", "{number} times {number}?",
        "Où est le {word}?", "Quel temps fait-il?", "Bonjour, que vois-tu sur cette image?",
        "Combien d'objets y a-t-il?", "Was ist links?", "Welche Farbe hat das Auto?", "Beschreibe das Bild.",
        "Wie ist das Wetter?", "Ist das ein Baum?", "¿Dónde está el coche?", "¿Cuántos objetos hay?",
        "Hola, describe la imagen.", "Di che colore è il gatto?", "Quanti oggetti ci sono?",
        "Qual é a cor do cachorro?", "Descreva a imagem.", "Hoeveel dingen zie je?", "Wat is dit?", "Что это?",
        "Какого цвета дом?", "这是什么？", "写真を説明してください", "Czy to kot?", "Vad är det här?",
        "Kuinka monta?",
        "{word} {word} {word}", "{word} {word}", "{word}", "{word} the {word} of {word} {kind}?",
        "What {word} the {word}?", "{letters}", "{letters} {letters}", "{letters} {letters} {letters}?",
        "Is the {word} {letters}?", "!!!", "...", "?", "{letters}?",
        "Whos that?", "What's the name of the {kind}'s friend?", "How heavy is it?", "Would the {kind} like you?",
        "What did the {kind} do before?", "Where would you put the {kind}?", "Who lives in the {kind}?",
        "Is the {kind} sad?", "What would it cost?", "How come the {kind} is there?", "Why though?",
        "Who else is there?", "What happens then?", "Whats your {word}?",
    ),
}  # fmt: skip

_WORDS: Final = (
    *STRANGE, "lazy", "famous", "quick", "sour", "sing", "jump", "yesterday", "seven", "science", "music", "river",
    "lunch", "idea", "because", "maybe", "slowly", "paper", "market", "and", "of", "under", "never", "goal", "war",
    "dance", "sleep",
)  # fmt: skip
_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {  # "what is" and "where is" stay as they are
    "picture": ("image", "photo", "pic", "drawing", "scene"), "objects": ("items", "things"),
    "things": ("items", "objects"), "tell me": ("say", "tell us"), "large": ("big",),
    "there is": ("there's",), "cannot": ("can't",), "it is": ("it's",),
    "who is": ("who's",), "centre": ("center",), "do you see": ("can you see",),
}  # fmt: skip
_BEGINNINGS: Final = ("please, ", "hey, ", "ok, ", "now, ", "um ", "one question: ", "quick: ", "hm, ", "but ", "and ")
_ENDINGS: Final = (" please", " then", " in this picture", " now", " in the image", ", I wonder", " exactly", " there")
_FAMILIAR: Final = frozenset({*KINDS, *PLURALS.values(), *COLOURS, "colour", "colours"})
_DRAWN: Final[dict[str, Callable[[random.Random], str]]] = {
    "{word}": lambda rng: rng.choice(_WORDS),
    "{number}": lambda rng: str(rng.choice((3, 5, 7, 8, 12, 15, 26, 60, 99))),
    "{letters}": lambda rng: "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 8))),
}
INFORMAL = 0.5  # share of the questions that are varied


def worded(query: Query, rng: random.Random) -> QuestionAnswer:
    """Put a question into words, formal or informal, and choose one of its answers."""
    template = rng.choice(WORDINGS[query.form])
    for slot, draw in _DRAWN.items():
        while slot in template:
            template = template.replace(slot, draw(rng), 1)
    question = template.format(**query.slots)
    question = question if query.form == "unknowable" else polish(question)
    return QuestionAnswer(inform(question, rng) if rng.random() < INFORMAL else question, rng.choice(query.answers))


def inform(question: str, rng: random.Random) -> str:
    """Vary a question as people type: other words, words around it, a slip, small letters, no mark."""
    text = question
    for word, others in _SYNONYMS.items():
        if rng.random() < 0.3:
            text = re.sub(rf"\b{word}\b", rng.choice(others), text, count=1, flags=re.IGNORECASE)
    mark = text[-1] if text[-1] in ".?!" else ""
    body = text.removesuffix(mark)
    if rng.random() < 0.25 and body:
        body = rng.choice(_BEGINNINGS) + body[0].lower() + body[1:]
    if rng.random() < 0.2:
        body += rng.choice(_ENDINGS)
    if rng.random() < 0.15:
        body = _slip(body, rng)
    return (body if rng.random() < 0.3 else body.lower()) + (mark if rng.random() < 0.4 else "")


def _slip(text: str, rng: random.Random) -> str:
    """Drop, double or swap a letter of a word that is no kind and no colour."""
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 3 and word.isalpha() and word.lower() not in _FAMILIAR]
    if long:
        word = words[chosen := rng.choice(long)]
        at = rng.randrange(1, len(word) - 1)
        letter, after = word[at], word[at + 1 :]
        words[chosen] = word[:at] + rng.choice((after, letter * 2 + after, after[0] + letter + after[1:]))
    return " ".join(words)
