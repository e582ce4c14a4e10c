"""How the page looks: its widgets, its words and its style sheet. Nothing on it comes from another server."""

from __future__ import annotations

from math import log10

from bokeh.layouts import column, row
from bokeh.models import Button, CustomJS, CustomJSTickFormatter, Div, LayoutDOM, Select, Slider, Spinner, TextInput

from .picture import Axis, Picture
from .plots import Plots
from .presets import PRESETS
from .state import COSTS, EPS_RANGE, MOST, READS, SQUASHES, State, as_text, to_query
from .wire import Wire

OWN = "Your own"  # what the list of presets says after a change
#: The numbers above the plots, and how many digits wide each is: lines that broke elsewhere would move every plot.
FACTS = {
    "eps": 7,
    "values, targets": 8,
    "spread over": 11,
    "Newton steps": 2,
    "marginal error": 7,
    "converged": 3,
    "solved in": 7,
}

TEMPLATE = """
{% block title %}sinksort playground{% endblock %}
{% block preamble %}
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  html, body { height: 100%; margin: 0; background: #fff; color: #1f2430; font: 13px/1.35 system-ui, sans-serif; }
  .playground { display: grid; grid-template: auto 1fr / 290px 1fr; height: 100vh; min-height: 620px; }
  header { grid-column: 1 / 3; padding: 7px 14px 6px; border-bottom: 1px solid #d5d9e0; display: flex; gap: 18px;
    align-items: baseline; flex-wrap: wrap; }
  h1 { font-size: 16px; margin: 0; }
  header p { margin: 0; color: #4b5263; }
  aside { padding: 6px 12px; border-right: 1px solid #d5d9e0; overflow-y: auto; background: #f7f8fa; }
  dl { margin: 10px 0 0; font-size: 12px; color: #4b5263; }
  dt { font-weight: 600; color: #1f2430; float: left; margin-right: 5px; }
  dd { margin: 0 0 4px; }
  main { padding: 4px 8px; min-width: 0; min-height: 0; display: flex; flex-direction: column; }
  #facts { display: flex; gap: 3px 12px; flex-wrap: wrap; margin: 5px 9px; color: #6b7280; font-size: 12px;
    font-variant-numeric: tabular-nums; contain: content; }
  #facts b { color: #1f2430; display: inline-block; }
  .above, .below { display: flex; min-height: 0; }
  .above { flex: 1; }
  .below { flex: 0 0 38%; }
  .plot { flex: 1; min-width: 0; display: flex; }
  #matrix { flex: 0 0 310px; }
  #flow { touch-action: pan-y; }  /* a finger drags values sideways, and scrolls up and down */
  @media (max-width: 900px) {  /* one below the other, the plan first and the slider next to it */
    .playground { display: flex; flex-flow: row wrap; height: auto; }
    aside, main, .above, .below { display: contents; }
    header, #message, #facts, #controls, #words { box-sizing: border-box; width: 100%; order: 1; }
    header p { display: none; }
    #facts { margin: 6px 14px 0; gap: 1px 14px; font-size: 12px; }
    .plot, #matrix { flex: 1 1 300px; height: 280px; padding: 0 6px; order: 4; }
    #flow { flex: 0 0 100%; box-sizing: border-box; height: max(300px, 38vh); order: 2; }
    #controls { padding: 4px 14px 8px; background: #f7f8fa; order: 3; }
    #words { padding: 4px 14px 14px; order: 5; }
  }
</style>
<script>
  // At each paint Bokeh writes the style sheet of every axis, grid and glyph anew and then asks for styles, so that the
  // browser computes them all again, some hundred times. A sheet that says the same already is left alone.
  const text = Object.getOwnPropertyDescriptor(Node.prototype, "textContent")
  Object.defineProperty(HTMLStyleElement.prototype, "textContent", {
    ...text, set(css) { if (css !== text.get.call(this)) text.set.call(this, css) },
  })
</script>
{% endblock %}
{% block contents %}
<div class="playground">
<header>
  <h1>sinksort playground</h1>
  <p>Sorting as transport: values move to targets in order. The larger eps, the more targets share a value, and the
  smoother its rank.</p>
</header>
<aside aria-label="What to sort, and how">
  <div id="controls">{{ embed(roots.controls) }}</div>
  <dl id="words">
    <dt>Arrows</dt><dd>as wide as the mass they move; a value that is dragged takes its arrows along</dd>
    <dt>Soft rank</dt><dd>of a value: the average place of the targets that it is sent to</dd>
    <dt>Soft sorted</dt><dd>at a target: the average of the values that it receives</dd>
    <dt>Gradient</dt><dd>how that number answers when a value moves; hard ranks do not</dd>
    <dt>Spread</dt><dd>over how many ranks the plan shares out a value</dd>
    <dt>Marginal error</dt><dd>how much mass is not where it should be</dd>
  </dl>
</aside>
<main>
  <div id="message" role="alert">{{ embed(roots.message) }}</div>
  <div id="facts" aria-live="polite">FACTS</div>
  <div class="above">
    <div class="plot" id="flow">{{ embed(roots.flow) }}</div>
    <div class="plot" id="matrix">{{ embed(roots.matrix) }}</div>
  </div>
  <div class="below">
    <div class="plot">{{ embed(roots.ranks) }}</div>
    <div class="plot">{{ embed(roots.sorted) }}</div>
    <div class="plot">{{ embed(roots.gradient) }}</div>
  </div>
</main>
</div>
{% endblock %}
""".replace(
    "FACTS", "".join(f"<span>{name} <b style='min-width: {wide}ch'></b></span>" for name, wide in FACTS.items())
)

_COPY = """
const label = button.label
const say = (text) => { button.label = text; setTimeout(() => { button.label = label }, 1500) }
navigator.clipboard.writeText(location.origin + location.pathname + "?" + frame.now.query)
  .then(() => say("Link copied"), () => say("Copy the address bar"))
"""
_SAVE = """
const drawn = plots.map((plot) => Bokeh.index.find_one(plot)).map((view) => {
  const {canvas} = view.export("png", true)
  return {canvas, box: view.el.getBoundingClientRect()}
})
const left = Math.min(...drawn.map(({box}) => box.left)), right = Math.max(...drawn.map(({box}) => box.right))
const tops = new Map()  // row below row, without what stands between them on a narrow page
let height = 0
for (const {box} of drawn.toSorted((one, other) => one.box.top - other.box.top))
  if (!tops.has(box.top)) {
    tops.set(box.top, height)
    height += box.height
  }
const page = document.createElement("canvas")
page.width = devicePixelRatio * (right - left)
page.height = devicePixelRatio * height
const ctx = page.getContext("2d")
ctx.fillStyle = "#ffffff"
ctx.fillRect(0, 0, page.width, page.height)
for (const {canvas, box} of drawn)
  ctx.drawImage(canvas, devicePixelRatio * (box.left - left), devicePixelRatio * tops.get(box.top))
const a = document.createElement("a")
a.download = "sinksort.png"
a.href = page.toDataURL("image/png")
a.click()
"""
LOST = """
message.text = text
message.visible = true
// Its session is gone, but the address says what was shown.
const look = () => fetch("/static/js/bokeh.min.js", {method: "HEAD"}).then(() => location.reload(), wait)
const wait = () => setTimeout(look, 2000)
wait()
"""


class Page:
    """The models of one open page. ``show`` puts a state on it; what happens on a touch is not decided here."""

    def __init__(self) -> None:
        self.plots = Plots()
        self.message = Div(
            name="message",
            visible=False,
            sizing_mode="stretch_width",
            styles={
                "background": "#fff3cd",
                "border-left": "4px solid #b3261e",
                "padding": "6px 10px",
                "margin": "2px",
            },
        )
        self.wire = Wire(self.plots.sources, self.plots.ranges)

        wide = {"sizing_mode": "stretch_width", "margin": (3, 0, 3, 0)}
        self.preset = Select(title="Begin with", name="preset", options=[OWN, *PRESETS], **wide)
        self.eps = Slider(
            title="eps, the softness",
            name="eps",
            start=log10(EPS_RANGE[0]),
            end=log10(EPS_RANGE[1]),
            step=0.02,
            value=-2.0,
            format=CustomJSTickFormatter(code="return Number((10**tick).toPrecision(2)).toString()"),
            bar_color="#24478f",
            **wide,
        )
        self.x = TextInput(title="Values x, with commas", name="x", **wide)
        self.n = Spinner(title="How many", name="n", low=1, high=MOST, step=1, width=84, margin=(3, 0, 3, 8))
        self.weights = TextInput(title="Weights a of the values", name="a", placeholder="equal", **wide)
        self.m = Spinner(title="Targets m", name="m", low=1, high=MOST, step=1, width=84, margin=(3, 0, 3, 8))
        self.target_weights = TextInput(title="Weights b of the targets", name="b", placeholder="equal", **wide)
        costs = [(key, text) for key, (text, _) in COSTS.items()]
        self.cost = Select(
            title="Cost of moving by a distance",
            name="cost",
            options=costs,
            **wide,
        )
        self.squash = Select(title="Squash values into [0, 1]", name="squash", options=list(SQUASHES.items()), **wide)
        self.gradient = Select(title="Gradient of (or tap a value or target)", name="gradient_of", **wide)
        drawn = [self.plots.flow, self.plots.matrix, self.plots.ranks, self.plots.sorted, self.plots.gradient]
        copy = Button(label="Copy link", name="copy", sizing_mode="stretch_width", margin=(8, 4, 3, 0))
        copy.js_on_event("button_click", CustomJS(args={"frame": self.wire.frame, "button": copy}, code=_COPY))
        save = Button(label="Save picture", name="save", sizing_mode="stretch_width", margin=(8, 0, 3, 4))
        save.js_on_event("button_click", CustomJS(args={"plots": drawn}, code=_SAVE))
        controls = column(
            self.preset,
            self.eps,
            row(self.x, self.n, sizing_mode="stretch_width"),
            self.weights,
            row(self.target_weights, self.m, sizing_mode="stretch_width"),
            self.cost,
            self.squash,
            self.gradient,
            row(copy, save, sizing_mode="stretch_width"),
            name="controls",
            sizing_mode="stretch_width",
        )
        self.roots: list[LayoutDOM] = [controls, self.message, *drawn]

    def show(self, state: State) -> None:
        """Every widget says what ``state`` is."""
        self.preset.value = next((name for name, preset in PRESETS.items() if preset == state), OWN)
        if abs(10.0**self.eps.value - state.eps) > 1e-6 * state.eps:  # a slider is not corrected while it moves
            self.eps.value = round(log10(state.eps), 4)
        self.x.value = as_text(state.x)
        self.n.value = state.n
        self.weights.value = as_text(state.weights)
        self.m.value = state.m
        self.target_weights.value = as_text(state.target_weights)
        self.cost.value = state.cost
        self.squash.value = state.squash
        many = {"rank": state.n, "sorted": state.m}
        options = [(f"{reads}-{k}", f"{text} {k}") for reads, text in READS.items() for k in range(1, many[reads] + 1)]
        if self.gradient.options != options:
            self.gradient.options = options
        self.gradient.value = f"{state.reads}-{state.index + 1}"

    def say(self, text: str) -> None:
        """A message above the plots; an empty one takes it away."""
        self.message.text = text
        self.message.visible = bool(text)

    def draw(self, picture: Picture, axis: Axis) -> None:
        """All plots, the numbers above them and the address."""
        plots = self.plots
        self.wire.send(
            plots.tables(picture, axis), plots.spans(picture, axis), _facts(picture), to_query(picture.state)
        )
        plots.label(picture)


def _facts(picture: Picture) -> list[str]:
    """The numbers behind the plan, in the order of ``FACTS``."""
    row = picture.row
    return [
        f"{row.eps:.3g}",
        f"{len(row.x)}, {len(row.y)}",
        f"{row.spread().mean():.2f} ranks",
        str(row.iterations),
        f"{row.marginal_error:.1e}",
        "yes" if row.converged else "NO: a larger eps is easier",
        f"{1e3 * picture.seconds:.0f} ms",
    ]
