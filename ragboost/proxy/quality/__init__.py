"""What chunk reuse does to answers: sampled answers are scored exactly, and a budget steers."""
