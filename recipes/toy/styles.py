"""Styles of description: list, story, guide, notes, playful, critic. ``language`` fills the slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Style:
    """Wording of one style of description. Scene slots: {in_place} {at_time} {sky} {ground} {n} {are} {order} {mood}
    {place} {weather} {hour}; object slots: {a} {verb} {ving} {where} {spot}.

    The position of an object comes before its kind, so that the model attends to one cell only.
    """

    prompts: tuple[str, ...]
    openings: tuple[str, ...]  # name the place
    skies: tuple[str, ...]  # name the weather and the time
    counts: tuple[str, ...]  # name the total
    orders: tuple[str, ...]  # announce the order of two objects or more
    only: tuple[str, ...]  # introduce a single object
    first: tuple[str, ...]
    following: tuple[str, ...]
    last: tuple[str, ...]
    steps: tuple[str, ...]  # introduce an object by its {step} from the one before
    relations: tuple[str, ...]  # wrap a true {relation}
    grounds: tuple[str, ...]
    closings: tuple[str, ...]  # wrap a {closing} about the mood
    layouts: tuple[str, ...]  # order of parts: o(pening) s(ky) c(ount) t(hings) g(round) r(elation) e(nd)


INVENTORY: Final = Style(
    prompts=("List what you see.", "Make a list of everything in this image."),
    openings=("this picture was made {in_place}", "the setting is {place}", "the image shows a scene {in_place}"),
    skies=("{sky}", "{sky}"),
    counts=("there {are} {n} in total", "the picture contains exactly {n}", "I can count {n}"),
    orders=("the list goes {order}", "here they are {order}", "they are named {order}"),
    only=("{where} there is {a}", "{where} I see {a}", "{where} one finds {a}"),
    first=("first, {where}, there is {a}", "number one, {where}: {a}", "{where} there is {a}"),
    following=("{where} there is also {a}", "{where} there is {a}", "then, {where}, comes {a}"),
    last=("finally, {where}, there is {a}", "the list ends {where} with {a}", "{where} there is {a}"),
    steps=("{step} there is {a}", "{step} one finds {a}"),
    relations=("{relation}", "note that {relation}", "also, {relation}"),
    grounds=("{ground}", "around them {ground}"),
    closings=("{closing}", "in short, {closing}"),
    layouts=("osctrge", "cosgtre", "octrsge"),
)
STORY: Final = Style(
    prompts=("Tell me a story about this picture.", "What story does this image tell?"),
    openings=("our story begins {in_place}", "once more we find ourselves {in_place}",
              "far from home, {in_place}, a small tale unfolds"),
    skies=("{sky}", "that is how it is: {sky}", "listen, {sky}"),
    counts=("this tale has {n} in it", "only {n} {are} awake to hear it", "fate has brought {n} here"),
    orders=("let us meet them {order}", "we meet them one by one, {order}", "the tale visits them {order}"),
    only=("{where}, {a} {verb} all alone", "{where} {a} {verb} and says nothing", "{where}, {a} {verb} in peace"),
    first=("{where}, {a} {verb}", "the hero waits {where}: {a}", "it begins {where}, where {a} {verb}"),
    following=("meanwhile, {where}, {a} {verb}", "not far off, {where}, {a} {verb}",
               "{where}, {a} {verb} and says nothing"),
    last=("at the end of the tale, {where}, {a} {verb}", "and {where}, {a} {verb} too",
          "last of all, {where}, {a} {verb}"),
    steps=("{step}, {a} {verb}", "and {step}, {a} {verb}"),
    relations=("people say that {relation}", "as luck would have it, {relation}", "strange but true: {relation}"),
    grounds=("{ground}", "all around, {ground}"),
    closings=("{closing}", "and so {closing}", "people say {closing}"),
    layouts=("osgctre", "soctrge", "ogsctre"),
)  # fmt: skip
GUIDE: Final = Style(
    prompts=("Show me around in this picture.", "Be my guide through this scene."),
    openings=("welcome, dear visitors, we are now {in_place}", "please follow me, our walk takes us to {place}",
              "here we are {in_place}"),
    skies=("as you notice, {sky}", "please remember that {sky}", "{sky}, so dress well"),
    counts=("you can admire {n} on this tour", "there {are} {n} for you to discover", "our tour includes {n}"),
    orders=("we will visit them {order}", "I will present them {order}", "let me show them to you {order}"),
    only=("{where} you will find {a}", "please look {where}, at {a}", "{where} you cannot miss {a}"),
    first=("we start {where} with {a}", "{where} you will find {a}", "please look {where}, at {a} {ving} there"),
    following=("{where} we come to {a}", "{where} you can see {a}", "another favourite waits {where}: {a}"),
    last=("our tour ends {where} at {a}", "before we leave, look {where}, at {a}", "{where} you can see {a}"),
    steps=("{step} you will notice {a}", "{step} you can see {a} {ving}"),
    relations=("you may have noticed that {relation}", "from here you see that {relation}",
               "visitors often remark that {relation}"),
    grounds=("watch your step: {ground}", "{ground}, as always at this spot"),
    closings=("thank you, {closing}", "enjoy your visit, {closing}"),
    layouts=("osctgre", "ocstrge", "ogcstre"),
)  # fmt: skip
NOTES: Final = Style(
    prompts=("Describe the picture in short notes.", "Give me brief notes on this image."),
    openings=("place: {place}", "location: {place}", "scene {in_place}"),
    skies=("weather: {weather}. Time: {hour}", "{hour} scene, {weather} weather", "sky: {sky}"),
    counts=("total: {n}", "{n} on view", "count: {n}"),
    orders=("order: {order}", "read {order}", "sorted {order}"),
    only=("{spot}: {a}", "{spot}, {a}", "{spot}, only {a}"),
    first=("{spot}: {a}", "{spot}, {a}", "one, {spot}: {a}"),
    following=("{spot}: {a}", "{spot}, {a}", "then, {spot}: {a}"),
    last=("{spot}: {a}", "{spot}, {a}", "lastly, {spot}: {a}"),
    steps=("{step}: {a}", "{step}, {a}"),
    relations=("{relation}", "remark: {relation}", "observed: {relation}"),
    grounds=("ground: {ground}", "details: {ground}"),
    closings=("mood: {closing}", "impression: {closing}"),
    layouts=("osctrge", "cotsgre", "oscgtre"),
)
PLAYFUL: Final = Style(
    prompts=("Describe this picture for a child.", "Describe this image in a funny way."),
    openings=("guess where we are? We are {in_place}!", "hooray, today we play {in_place}!",
              "look, somebody opened a toy box {in_place}!"),
    skies=("{sky}, isn't that nice?", "oh, {sky}!", "grab your coat, {sky}!"),
    counts=("can you find {n}?", "let us count: there {are} {n}!", "surprise, there {are} {n} to spot!"),
    orders=("ready? We go {order}!", "let us hop {order}!", "follow your finger {order}!"),
    only=("peekaboo, {where} {a} {verb}!", "who is {where}? It is {a}!", "{where} {a} {verb} and says hello!"),
    first=("peekaboo, {where} {a} {verb}!", "who is {where}? It is {a}!", "{where} {a} {verb} and says hello!"),
    following=("who else? Well, {where} {a} {verb}!", "psst, {where} {a} {verb}!", "and wow, {where}, {a}!"),
    last=("hurry, {where} {a} still {verb}!", "and who giggles {where}? It is {a}!", "the winner is {where}: {a}!"),
    steps=("{step}, {a} {verb}!", "and {step}? It is {a}!"),
    relations=("did you know that {relation}?", "cross my heart, {relation}!", "funny, {relation}!"),
    grounds=("yippee, {ground}!", "touch it: {ground}!"),
    closings=("shh, {closing}!", "{closing}, what fun!"),
    layouts=("osctrge", "ocsgtre", "sgoctre"),
)  # fmt: skip
CRITIC: Final = Style(
    prompts=("Describe this picture like an art critic.", "Review this image as a work of art."),
    openings=("the artist takes us to {place}", "this modest work is set {in_place}",
              "a simple composition {in_place} meets the eye"),
    skies=("{sky}, which sets the tone", "in the upper half {sky}", "{sky}, a bold choice"),
    counts=("the composition rests on {n}", "with {n}, the canvas feels balanced",
            "the painter needs no more than {n}"),
    orders=("the eye wanders over them {order}", "they are arranged to be read {order}", "the work unfolds {order}"),
    only=("{where}, the main role belongs to {a}", "{where} {a} {verb} and rules the canvas",
          "{where}, {a} sets the accent"),
    first=("the eye falls, {where}, on {a}", "{where}, {a} sets the accent",
           "{where}, the main role belongs to {a}"),
    following=("{where}, {a} answers with contrast", "{where}, {a} adds rhythm",
               "a counterweight, {where}: {a} {ving}"),
    last=("{where}, {a} completes the work", "{where}, {a} closes the circle", "the final stroke, {where}: {a}"),
    steps=("{step}, {a} adds depth", "{step} the painter puts {a}"),
    relations=("it is no accident that {relation}", "tension grows because {relation}",
               "critics will argue that {relation}"),
    grounds=("in fine detail, {ground}", "{ground}, painted with patience"),
    closings=("in the end {closing}", "overall, {closing}"),
    layouts=("osctrge", "ogsctre", "ocstrge"),
)  # fmt: skip

STYLES: Final[tuple[Style, ...]] = (INVENTORY, STORY, GUIDE, NOTES, PLAYFUL, CRITIC)
PLAIN_STYLES: Final[tuple[Style, ...]] = (INVENTORY, GUIDE, CRITIC)  # of a description that no style was asked for
