"""What a number in a sentence cites: brackets, and the word before it."""
