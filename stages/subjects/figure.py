"""Draws the accuracy of our own subject over training, on cells it is trained on and on held-out ones."""

from pathlib import Path

from stages.lib.core.tables import read_table
from stages.lib.drawing import drawing


def main() -> None:
    splits = list(
        read_table("data/subjects/training.parquet").sort("split", "step", descending=[True, False]).group_by("split", maintain_order=True)
    )
    figure, axes = drawing.plt.subplots(1, len(splits), figsize=(3.4 * len(splits), 2.8), sharey=True, squeeze=False)
    for axis, ((split,), part) in zip(axes[0], splits, strict=True):
        for operator, colour in drawing.COLOURS.items():
            curve = part.filter(operator=operator)
            drawing.curve(axis, curve["step"], curve["accuracy"], operator, colour)
        axis.set(title=f"{split} cells", xlabel="optimiser step", ylim=(-0.02, 1.02))
        axis.grid(alpha=0.3, linewidth=0.5)
    axes[0][0].set_ylabel("accuracy")
    axes[0][-1].legend(loc="lower right")
    figure.suptitle("Accuracy over training (fixed sample of cells)", fontsize=10)
    drawing.save(figure, Path("reports/subjects/training"))


if __name__ == "__main__":
    main()
