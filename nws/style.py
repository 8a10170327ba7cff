"""How figures look: one style and one set of colours for all of them."""

#: Okabe and Ito's colours, which colour-blind people can tell apart; not the yellow, weak on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: settings of matplotlib
STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8,
    "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7.5, "legend.frameon": False, "lines.linewidth": 1.2,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.5,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
    "ytick.major.size": 2.5, "savefig.dpi": 200, "svg.fonttype": "none", "svg.hashsalt": "nws",
}  # fmt: skip
