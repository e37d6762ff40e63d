"""The files of a data set, as stages hand them on: the split, packed images, features."""
