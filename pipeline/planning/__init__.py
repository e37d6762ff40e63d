"""What suits this machine and these images, and how long it takes. No stage imports it: it decides no result."""
