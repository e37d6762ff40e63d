"""Changes that tests/mutants.py does not try, because no test can notice them; each with its reason."""

from typing import NamedTuple


class Equivalent(NamedTuple):
    """Changes that no test can notice. They are found by their text, so the code may move to another module."""

    function: str  # the outermost function or class; empty at the top of a module
    statement: str  # the beginning of the statement, as ast.unparse writes it
    before: str  # the changed expression; empty: any expression of the statement
    after: str  # its replacement; empty: any
    reason: str


COLUMNS = "zip(classes, counts.sum(1).tolist(), precision.tolist(), recall.tolist(), f1.tolist())"
EQUIVALENT = (
    # data/duplicates.py
    Equivalent("", "CANDIDATES = ", "", "", "the size of a chunk: it bounds the memory and changes no result"),
    Equivalent("_expand", "cuts = ", "1", "0", "where chunks are cut changes no result"),
    Equivalent("near_pairs", "starts = ", "1", "2", "no band has a value this high: the last start is not used"),
    Equivalent("near_pairs", "starts = ", "16", "17", "no band has a value this high: the last starts are not used"),
    Equivalent("near_pairs", "for band, (values, radius) in", "True", "False", "both lists have one entry per band"),
    Equivalent(
        "near_pairs", "for band, (values, radius) in", "", "zip(bands, radii)", "both lists have one entry per band"
    ),
    Equivalent("near_pairs", "order = ", "", "np.argsort(values)", "the order of equal values changes no set of pairs"),
    Equivalent(
        "joined", "merged", "", "connected_components(edges)", "scipy's default is the weak connection: the same"
    ),
    Equivalent("joined", "merged", "False", "True", "scipy's default is the weak connection: the same"),
    # data/assignment.py
    Equivalent("intervals", "return {'train'", "Fraction(0)", "0", "0 compares as the fraction does"),
    Equivalent("shares", "train, val, test = ", "10 ** 6", "6 ** 10", "a larger limit: the same for six digits"),
    # loader/random_params.py: `full` has the shape [n, 1, 2]
    Equivalent("crop_boxes", "start = ", "0", "-1", "the first entry of an axis of length 1 is also the last"),
    Equivalent("crop_boxes", "corners = ", "0", "-1", "the first entry of an axis of length 1 is also the last"),
    # evaluation/metrics.py
    Equivalent("class_table", "columns = zip(", "True", "False", "all columns have one entry per class"),
    Equivalent("class_table", "columns = zip(", "", COLUMNS, "all columns have one entry per class"),
)
