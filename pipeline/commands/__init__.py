"""The commands for people, besides the stages."""
