"""Tell what a number in a sentence cites, by the brackets and the words before it."""
