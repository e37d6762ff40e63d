"""The processes of a stage: started, joined, watched, stopped; checkpoints and display. This decides no byte."""
