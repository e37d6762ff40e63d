"""Models: torchvision's by name, pretrained weights, the exported model."""
