"""Where images come from: an archive, a folder, a table of labels, torchvision, or drawn."""
