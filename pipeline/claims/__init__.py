"""What a commit claims of its outputs, and a repetition that checks it. No stage imports it: it decides no result."""
